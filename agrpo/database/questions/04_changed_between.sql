-- What changed between two versions?
--
-- One row per version: its weights, and the rollouts it sampled. Equal digests are equal weights, bit for bit: compare
-- two runs the same way. Rewards of two versions are of different prompts; question improved_prompts compares like with
-- like.
--
-- $first INTEGER = 0: the older version
-- $second INTEGER = NULL: the newer one; NULL is the newest that sampled a group
--
-- version, step: the version, and the optimizer step whose weights it is
-- digest: of all weights
-- num_groups, num_rollouts: sampled by the version
-- reward_mean: over its scored rollouts
-- length_mean: generated tokens per rollout
-- cut_share: rollouts whose last turn the model did not end itself
-- duplicate_share: rollouts equal to an earlier one of their group
WITH chosen AS (
    SELECT DISTINCT unnest([$first, coalesce($second, (SELECT max(model_version) FROM groups))]) AS version
),
published AS (
    SELECT version, step, digest
    FROM versions
    QUALIFY row_number() OVER (PARTITION BY version ORDER BY attempt DESC) = 1
),
sampled AS (
    SELECT
        model_version AS version, count(DISTINCT ticket) AS num_groups, count(*) AS num_rollouts,
        avg(reward) AS reward_mean, avg(num_completion_tokens) AS length_mean,
        avg((NOT terminated)::INTEGER) AS cut_share, avg(duplicate::INTEGER) AS duplicate_share
    FROM (SELECT * FROM rollouts WHERE model_version IN (FROM chosen))
    LEFT JOIN scores USING (ticket, rollout_index)
    GROUP BY model_version
)
SELECT version, step, digest, num_groups, num_rollouts, reward_mean, length_mean, cut_share, duplicate_share
FROM chosen LEFT JOIN published USING (version) LEFT JOIN sampled USING (version)
ORDER BY version;
