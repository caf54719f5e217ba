-- Which steps of every branch count, and since when do the others not?
--
-- One row per stretch of steps of one attempt that share their fate. Going back leaves a branch: its steps stay in the
-- tables, `FROM branches` has them one by one, and the live views show the history alone.
--
-- attempt: incarnation of the learner
-- first_step, last_step: from and to
-- live: whether they count
-- left_by: first attempt whose history goes on without them
-- left_because: rewind, diverged (carried out again, since the replay gave other weights) or superseded (finished too late)
-- rewind: the wish to go back that left them
-- left_at: when that was asked, or when the attempt that left them began
WITH numbered AS (
    SELECT *, step - row_number() OVER (PARTITION BY attempt, live, left_by, left_because ORDER BY step) AS stretch
    FROM branches
)
SELECT attempt, min(step) AS first_step, max(step) AS last_step, live, left_by, left_because, rewind, left_at
FROM numbered
GROUP BY attempt, live, left_by, left_because, rewind, left_at, stretch
ORDER BY attempt, first_step;
