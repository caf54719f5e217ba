-- In which steps did the importance ratio leave the trust region?
--
-- Steps with the most samples outside come first. The bounds are those of the loss (1 - epsilon to 1 + epsilon_high). Few
-- tokens outside are normal when groups are stale; many, with staleness 0, mean that sampler and trainer disagree:
-- question largest_differences shows at which tokens.
--
-- $rows INTEGER = 20: steps to show
-- $low DOUBLE = NULL: lower bound; NULL is the run's
-- $high DOUBLE = NULL: upper bound; NULL is the run's
--
-- step: optimizer step
-- low, high: the bounds
-- ratio_min, ratio_mean, ratio_max: of its trained tokens
-- outside_share: of its samples, those with a token outside
-- clipped_share: tokens outside on the side where the clip acts
-- masked_share: tokens left out of the loss
WITH bounds AS (
    SELECT
        coalesce($low, 1 - (settings->>'$.loss.epsilon')::DOUBLE) AS low,
        coalesce($high, 1 + coalesce(settings->>'$.loss.epsilon_high', settings->>'$.loss.epsilon')::DOUBLE) AS high
    FROM runs
)
SELECT
    step, low, high, min(ratio_min) AS ratio_min,
    sum(ratio_mean * num_trained_tokens) / sum(num_trained_tokens) AS ratio_mean, max(ratio_max) AS ratio_max,
    avg((ratio_min < low OR ratio_max > high)::INTEGER) AS outside_share,
    sum((clipped_low_share + clipped_high_share) * num_trained_tokens) / sum(num_trained_tokens) AS clipped_share,
    sum(masked_share * num_trained_tokens) / sum(num_trained_tokens) AS masked_share
FROM live_samples, bounds
GROUP BY step, low, high
HAVING min(ratio_min) < low OR max(ratio_max) > high
ORDER BY outside_share DESC, step DESC
LIMIT $rows;
