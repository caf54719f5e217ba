-- Do stale groups earn less, and does training on them differ?
--
-- One row per age of a group: weight updates between sampling and training. Rewards that fall with age are only older
-- policies; ratios far from 1 and tokens masked or clipped are what staleness costs the training.
--
-- staleness: weight updates between sampling and training
-- num_groups: consumed groups of that age
-- trained_share: of them, how many were trained
-- reward_mean: over their scored rollouts
-- ratio_min, ratio_max: extremes of the importance ratio over trained tokens
-- logprob_difference: mean absolute difference between sampler and trainer, nats
-- masked_share, clipped_share: of trained tokens
WITH group_rewards AS (
    SELECT ticket, count(reward) AS num_scored, sum(reward) AS total FROM scores GROUP BY ticket
),
ages AS (
    SELECT
        staleness, count(*) AS num_groups, avg(trained::INTEGER) AS trained_share,
        sum(total) / sum(num_scored) AS reward_mean
    FROM live_step_groups LEFT JOIN group_rewards USING (ticket)
    WHERE NOT is_void(drop_reason)
    GROUP BY staleness
),
tokens AS (
    SELECT
        staleness, min(ratio_min) AS ratio_min, max(ratio_max) AS ratio_max,
        sum(logprob_difference_mean * num_trained_tokens) / sum(num_trained_tokens) AS logprob_difference,
        sum(masked_share * num_trained_tokens) / sum(num_trained_tokens) AS masked_share,
        sum((clipped_low_share + clipped_high_share) * num_trained_tokens) / sum(num_trained_tokens) AS clipped_share
    FROM live_samples
    GROUP BY staleness
)
SELECT
    staleness, num_groups, trained_share, reward_mean, ratio_min, ratio_max, logprob_difference, masked_share,
    clipped_share
FROM ages LEFT JOIN tokens USING (staleness)
ORDER BY staleness;
