-- How long until an engine serves a new version?
--
-- The newest versions. The lag is what a weight update costs in freshness; a version without an engine was overtaken by
-- the next, or is still loading. An engine that started after the version was published is measured from its start, so
-- its lag has its loading in it. probe_difference near 0 proves that the engine serves these very weights.
--
-- $rows INTEGER = 20: versions to show
--
-- version, step: the version, and the optimizer step whose weights it is
-- published_at: when the learner published it
-- engine: that serves it; NULL: none so far
-- lag_seconds: from published, or the engine's start if that was later, to served; NULL: a later engine, start unknown
-- probe_difference: largest difference of the probe's log-probs, nats
WITH engines AS (
    SELECT payload->>'$.incarnation' AS engine, min(happened_at) AS started_at
    FROM events
    WHERE kind = 'stage_started'
    GROUP BY engine
),
served AS (
    SELECT
        *, rank() OVER (PARTITION BY version ORDER BY acknowledged_at) = 1
            OR rank() OVER (PARTITION BY engine ORDER BY acknowledged_at) > 1 AS ran_already
    FROM acknowledgements LEFT JOIN engines USING (engine)
),
published AS (
    SELECT version, arg_min(step, attempt) AS step, min(published_at) AS published_at
    FROM versions
    GROUP BY version
    ORDER BY version DESC
    LIMIT $rows
)
SELECT
    version, step, published_at, engine,
    CASE WHEN ran_already OR started_at IS NOT NULL THEN epoch(acknowledged_at - greatest(published_at, started_at)) END
        AS lag_seconds,
    probe_difference
FROM published LEFT JOIN served USING (version)
ORDER BY version DESC, acknowledged_at;
