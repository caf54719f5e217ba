-- Which prompts improved the most?
--
-- The group that asked a prompt first against the one that asked it last. One group is few rollouts: trust a change that
-- many prompts share. Turn the order round (ORDER BY improvement) for what the policy unlearned.
--
-- $rows INTEGER = 20: prompts to show
--
-- prompt_id: the same question has the same id in every epoch
-- question: the beginning of the prompt's last message
-- num_groups: how often it was asked
-- first_reward_mean: of the first group that was scored
-- last_reward_mean: of the newest
-- improvement: last less first
SELECT
    prompt_id, left(question, 80) AS question, num_groups, first_reward_mean, last_reward_mean,
    last_reward_mean - first_reward_mean AS improvement
FROM prompts
WHERE num_groups > 1 AND first_reward_mean IS NOT NULL
ORDER BY improvement DESC, prompt_id
LIMIT $rows;
