-- Do the rewards agree with one another?
--
-- One row per pair. Near 1: they say the same, and one of them may go; below 0: the policy is pulled two ways, and the
-- weights decide. NULL: one of them is always the same.
--
-- name, other: two rewards
-- num_rollouts: rollouts that both gave a value
-- correlation: Pearson's, from -1 to 1
-- mean, other_mean: of their values over these rollouts
SELECT
    a.name, b.name AS other, count(*) AS num_rollouts, corr(a.value, b.value) AS correlation,
    avg(a.value) AS mean, avg(b.value) AS other_mean
FROM rewards AS a JOIN rewards AS b USING (ticket, rollout_index)
WHERE a.name < b.name AND a.value IS NOT NULL AND b.value IS NOT NULL
GROUP BY a.name, b.name
ORDER BY a.name, b.name;
