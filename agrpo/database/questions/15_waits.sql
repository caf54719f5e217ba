-- What did each stage wait for?
--
-- One row per place where somebody or something waits. The generator waits for run-ahead when the learner is slower
-- (good: the learner is busy), for a free place among the rollouts that the engine bears or that may run at once, and
-- for the scorer where too many of its groups are unscored. The learner waits for groups when the generators or the
-- scorer are slower: where it is the scorer, finished groups wait for it. What waits long grows stale. A published version waits for the first engine that
-- serves it, and from that engine's start if it started later.
--
-- who: who or what waited
-- waited_for: and for what
-- num_waits: how often
-- seconds_total, seconds_mean, seconds_max: how long
WITH engines AS (
    SELECT payload->>'$.incarnation' AS engine, min(happened_at) AS started_at
    FROM events
    WHERE kind = 'stage_started'
    GROUP BY engine
),
first_served AS (
    SELECT version, min(acknowledged_at) AS acknowledged_at, arg_min(engine, acknowledged_at) AS engine
    FROM acknowledgements
    GROUP BY version
),
waits AS (
    SELECT 1 AS place, 'generator' AS who, 'run-ahead: a free place within async.max_staleness' AS waited_for,
        backpressure_seconds AS seconds
    FROM groups
    UNION ALL
    SELECT 2, 'generator', 'load: a free place below the live cap', load_wait_seconds FROM groups
    UNION ALL
    SELECT 3, 'generator', 'ceiling: a free place within async.max_concurrent_rollouts', ceiling_wait_seconds FROM groups
    UNION ALL
    SELECT 4, 'generator', 'scoring: a free place within async.scoring_queue', score_block_seconds FROM groups
    UNION ALL
    SELECT 5, 'finished group', 'the scorer', score_wait_seconds FROM scored_groups
    UNION ALL
    SELECT 6, 'scored group', 'a plan of the learner', epoch(planned_at - scored_at)
    FROM live_step_groups JOIN scored_groups USING (ticket) JOIN live_plans USING (attempt, step)
    UNION ALL
    SELECT 7, 'learner', 'scored groups', wait_seconds FROM live_steps
    UNION ALL
    SELECT 8, 'published version', 'an engine that serves it', epoch(acknowledged_at - greatest(published_at, started_at))
    FROM first_served JOIN (SELECT version, min(published_at) AS published_at FROM versions GROUP BY version)
        USING (version) LEFT JOIN engines USING (engine)
)
SELECT
    who, waited_for, count(seconds) AS num_waits, sum(seconds) AS seconds_total, avg(seconds) AS seconds_mean,
    max(seconds) AS seconds_max
FROM waits
GROUP BY place, who, waited_for
ORDER BY place;
