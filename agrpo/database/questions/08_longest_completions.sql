-- Which completions are the longest?
--
-- The last ones are often cut (stop_reason length), and often repeat themselves: read a few. Their whole text is in
-- rollouts.completion_text, their tokens in turns.
--
-- $rows INTEGER = 20: completions to show
--
-- ticket, rollout_index: the rollout
-- model_version: that sampled it
-- num_completion_tokens: generated tokens
-- stop_reason: why it ended
-- reward: its total
-- completion: its beginning
WITH longest AS (
    SELECT ticket, rollout_index, num_completion_tokens
    FROM rollouts
    ORDER BY num_completion_tokens DESC, ticket DESC, rollout_index
    LIMIT $rows
)
SELECT
    ticket, rollout_index, model_version, num_completion_tokens, stop_reason, reward,
    left(completion_text, 80) AS completion
FROM longest JOIN rollouts USING (ticket, rollout_index, num_completion_tokens)
LEFT JOIN scores USING (ticket, rollout_index)
ORDER BY num_completion_tokens DESC, ticket DESC, rollout_index;
