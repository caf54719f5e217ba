-- How does the entropy of the policy develop?
--
-- Mean over trained tokens, in windows of steps. A slow fall is learning; a fall to almost 0 while the reward stands still
-- is collapse, and a rise with falling reward is divergence.
--
-- $size INTEGER = 10: steps of a window
--
-- first_step, last_step: the window
-- entropy: mean over its trained tokens, nats
-- sample_min, sample_max: lowest and highest mean of a sample
-- num_trained_tokens: it is the mean of
SELECT
    min(step) AS first_step, max(step) AS last_step,
    sum(entropy_mean * num_trained_tokens) / sum(num_trained_tokens) AS entropy,
    min(entropy_mean) AS sample_min, max(entropy_mean) AS sample_max,
    sum(num_trained_tokens)::BIGINT AS num_trained_tokens
FROM live_samples
GROUP BY (step - 1) // $size
ORDER BY first_step;
