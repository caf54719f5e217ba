-- How long until an engine serves a new version?
--
-- The newest versions. The lag is what a weight update costs in freshness; a version without an engine was overtaken by
-- the next, or is still loading. probe_difference near 0 proves that the engine serves these very weights.
--
-- $rows INTEGER = 20: versions to show
--
-- version, step: the version, and the optimizer step whose weights it is
-- published_at: when the learner published it
-- engine: that serves it; NULL: none so far
-- lag_seconds: from published to served
-- probe_difference: largest difference of the probe's log-probs, nats
WITH published AS (
    SELECT version, arg_min(step, attempt) AS step, min(published_at) AS published_at
    FROM versions
    GROUP BY version
    ORDER BY version DESC
    LIMIT $rows
)
SELECT version, step, published_at, engine, epoch(acknowledged_at - published_at) AS lag_seconds, probe_difference
FROM published LEFT JOIN acknowledgements USING (version)
ORDER BY version DESC, acknowledged_at;
