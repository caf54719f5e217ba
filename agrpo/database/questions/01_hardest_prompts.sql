-- Which prompts are the hardest?
--
-- Lowest mean reward first, over every time the prompt was asked. A pass_rate of 0 after many rollouts teaches nothing:
-- groups with equal rewards are dropped. See whether the answer in groups.facts is right before blaming the policy.
--
-- $rows INTEGER = 20: prompts to show
-- $asked INTEGER = 1: leave out prompts that were asked less often
--
-- prompt_id: the same question has the same id in every epoch
-- question: the beginning of the prompt's last message
-- num_groups: how often it was asked
-- num_rollouts: its completions
-- reward_mean: over its scored rollouts
-- pass_rate: share of them with a reward of 1 or more
SELECT prompt_id, left(question, 80) AS question, num_groups, num_rollouts, reward_mean, pass_rate
FROM prompts
WHERE reward_mean IS NOT NULL AND num_groups >= $asked
ORDER BY reward_mean, num_rollouts DESC, prompt_id
LIMIT $rows;
