-- For which prompts are completions cut?
--
-- Largest share of completions that the model did not end itself. Where cut completions earn less than whole ones, a
-- larger engine.max_completion_length helps; where the share rises over the run, the policy rambles.
--
-- $rows INTEGER = 20: prompts to show
--
-- prompt_id, question: the prompt, and the beginning of its last message
-- num_rollouts: completions that have tokens
-- num_cut: of them, how many were cut
-- cut_share: of them
-- cut_reward: mean reward of the cut ones
-- whole_reward: and of those that ended by themselves
WITH ends AS (
    SELECT
        ticket, count(*) AS num_rollouts, count(*) FILTER (NOT terminated) AS num_cut,
        sum(reward) FILTER (NOT terminated) AS cut_total, count(reward) FILTER (NOT terminated) AS cut_scored,
        sum(reward) FILTER (terminated) AS whole_total, count(reward) FILTER (terminated) AS whole_scored
    FROM rollouts LEFT JOIN scores USING (ticket, rollout_index)
    WHERE num_completion_tokens > 0
    GROUP BY ticket
)
SELECT
    prompt_id, left(any_value(prompt)->>'$[#-1].content', 80) AS question, sum(ends.num_rollouts)::BIGINT AS num_rollouts,
    sum(num_cut)::BIGINT AS num_cut, sum(num_cut) / sum(ends.num_rollouts) AS cut_share,
    sum(cut_total) / sum(cut_scored) AS cut_reward, sum(whole_total) / sum(whole_scored) AS whole_reward
FROM ends JOIN groups USING (ticket)
GROUP BY prompt_id
HAVING sum(num_cut) > 0
ORDER BY cut_share DESC, num_cut DESC, prompt_id
LIMIT $rows;
