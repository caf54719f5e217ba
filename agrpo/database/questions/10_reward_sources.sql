-- What does each reward give?
--
-- One row per reward of the run, before weights. A reward that is always the same (std 0) cannot teach; one whose
-- correlation with the total is near 0 is drowned by the others.
--
-- name, weight: the reward
-- num_values: values it gave
-- num_silent: rollouts it had nothing to say about, without an error
-- num_errors: rollouts it failed for; question failed_rewards has the messages
-- value_mean, value_std: of its values
-- correlation: of its value with the total reward
-- seconds_mean: its call for a group
SELECT
    name, any_value(weight) AS weight, count(value) AS num_values,
    count(*) FILTER (value IS NULL AND error IS NULL) AS num_silent, count(error) AS num_errors,
    avg(value) AS value_mean, stddev_samp(value) AS value_std,
    corr(value, reward) AS correlation, avg(duration_seconds) AS seconds_mean
FROM rewards LEFT JOIN scores USING (ticket, rollout_index)
GROUP BY name
ORDER BY name;
