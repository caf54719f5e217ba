-- At which tokens do sampler and trainer differ the most?
--
-- With staleness 0 both are the same policy, and a large difference is a difference of the two programs: numerics,
-- attention, or a sampler setting. Otherwise the policy has moved since. A token that returns again and again points at
-- the tokenizer or the chat template.
--
-- $rows INTEGER = 20: tokens to show
--
-- ticket, rollout_index: the rollout
-- turn_index, token_index: the token's place in the turn's output, from 0
-- token_id: in the model's vocabulary
-- sampler_log_prob: when it was sampled, nats
-- difference: log-prob when it was trained less that, nats
-- staleness: weight updates between the two
WITH widest AS (
    SELECT attempt, step, ticket, rollout_index, sequence_index
    FROM live_samples
    ORDER BY logprob_difference_max DESC
    LIMIT $rows
),
tokens AS (
    SELECT
        ticket, rollout_index, turn_index, unnest(token_indices) AS token_index, unnest(token_ids) AS token_id,
        unnest(sampler_log_probs) AS sampler_log_prob, unnest(log_probs) AS log_prob, staleness
    FROM trained_turns JOIN widest USING (attempt, step, ticket, rollout_index, sequence_index)
    WHERE ticket IN (SELECT ticket FROM widest)
)
SELECT
    ticket, rollout_index, turn_index, token_index, token_id, sampler_log_prob,
    log_prob - sampler_log_prob AS difference, staleness
FROM tokens
WHERE log_prob IS NOT NULL
ORDER BY abs(difference) DESC, ticket, rollout_index, turn_index, token_index
LIMIT $rows;
