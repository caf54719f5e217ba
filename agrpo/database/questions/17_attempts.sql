-- Which attempts made up the run, and what did they lose?
--
-- One row per start of the learner. A crash loses no finished step: the next learner replays every one of them, and goes on
-- after base_step. num_lost counts finished steps that no longer count, since the run went back before them, their replay
-- gave other weights, or a newer learner had taken over: they stay in the tables, and the live views leave them out. The
-- question branches lists them.
--
-- attempt: incarnation of the learner
-- started_at, host: when and where
-- parent, base_step: whose history it continues, and from which step on
-- rewind: the wish to go back that it fulfilled; NULL: none
-- void: it produced nothing that counts
-- num_steps: steps it finished
-- num_lost: of them, those that no longer count
-- first_step, last_step: those that do
WITH finished AS (
    SELECT
        attempt, count(*) AS num_steps, count(live.step) AS num_live, min(live.step) AS first_step,
        max(live.step) AS last_step
    FROM steps LEFT JOIN (SELECT attempt, step FROM live_steps) AS live USING (attempt, step)
    GROUP BY attempt
)
SELECT
    attempt, started_at, host, parent, base_step, rewind, void, coalesce(num_steps, 0) AS num_steps,
    coalesce(num_steps - num_live, 0) AS num_lost, first_step, last_step
FROM attempts LEFT JOIN bases USING (attempt) LEFT JOIN finished USING (attempt)
ORDER BY attempt;
