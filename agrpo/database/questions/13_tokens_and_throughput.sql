-- How many tokens does a step train, and how fast?
--
-- The last steps of the run. Seconds are wall time since the step before was done, waiting included: compare
-- tokens_per_second with busy_tokens_per_second, which leaves the waiting out.
--
-- $last INTEGER = 20: how many steps, counted from the newest
--
-- step: optimizer step
-- num_samples: trained sequences
-- num_tokens: forwarded tokens; one that samples of a row share counts once
-- num_trained_tokens: tokens with a loss, of every sample
-- step_seconds: wall time since the step before
-- wait_seconds: of it, waiting for scored groups
-- tokens_per_second: forwarded tokens over all of that time
-- busy_tokens_per_second: over the time less the waiting
WITH recent AS (
    SELECT attempt, step, step_seconds, wait_seconds
    FROM live_steps
    WHERE step > (SELECT max(step) FROM live_steps) - $last
),
tokens AS (
    SELECT
        attempt, step, count(*) AS num_samples, sum(num_trained_tokens)::BIGINT AS num_trained_tokens
    FROM live_samples
    WHERE step > (SELECT max(step) FROM live_steps) - $last
    GROUP BY attempt, step
),
forwarded AS (
    SELECT attempt, step, sum(num_tokens)::BIGINT AS num_tokens
    FROM live_step_rows
    WHERE step > (SELECT max(step) FROM live_steps) - $last
    GROUP BY attempt, step
)
SELECT
    step, coalesce(num_samples, 0) AS num_samples, coalesce(num_tokens, 0) AS num_tokens,
    coalesce(num_trained_tokens, 0) AS num_trained_tokens, step_seconds, wait_seconds,
    num_tokens / step_seconds AS tokens_per_second,
    num_tokens / nullif(step_seconds - wait_seconds, 0) AS busy_tokens_per_second
FROM recent
LEFT JOIN tokens USING (attempt, step)
LEFT JOIN forwarded USING (attempt, step)
ORDER BY step;
