-- Which completions does the policy repeat within a group?
--
-- The same tokens several times in one group: sampling has become narrow for that prompt. Many of them, and falling
-- entropy (question entropy), say that the policy collapses; a few short right answers are as it should be.
--
-- $rows INTEGER = 20: completions to show
--
-- ticket, prompt_id: the group and its prompt
-- model_version: that sampled it
-- copies: rollouts of the group with exactly these tokens
-- num_rollouts: rollouts of the group
-- reward: of the completion
-- completion: its beginning
WITH repeated AS (
    SELECT
        ticket, completion_ids, count(*) + 1 AS copies, any_value(reward) AS reward,
        any_value(left(completion_text, 80)) AS completion
    FROM (SELECT ticket, rollout_index, reward FROM scores WHERE duplicate)
    JOIN rollouts USING (ticket, rollout_index)
    GROUP BY ticket, completion_ids
)
SELECT ticket, prompt_id, model_version, copies, num_rollouts, reward, completion
FROM repeated JOIN groups USING (ticket)
ORDER BY copies DESC, ticket DESC, completion
LIMIT $rows;
