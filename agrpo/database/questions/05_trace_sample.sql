-- Where does one sample come from: from its loss back to the raw request?
--
-- One rollout, from the step that trained it back to the tokens the engine was given and returned, a fact a row. Read it
-- upwards for how the number came about. Log-probs are one per trained token, in order: exp(log_probs less
-- output_log_probs) is the importance ratio.
--
-- $ticket INTEGER = NULL: the group; NULL is the newest that was trained
-- $rollout INTEGER = 0: its place in the group
--
-- record: the table that has the fact; of several turns or sequences, with its number
-- fact: the column
-- value: as text
WITH chosen AS (
    SELECT
        coalesce($ticket, (SELECT max(ticket) FROM live_samples WHERE rollout_index = $rollout)) AS ticket,
        $rollout AS rollout_index
),
records AS (
    SELECT 1 AS place, 'step' AS record, [
        ('step', live_steps.step::VARCHAR), ('attempt', live_steps.attempt::VARCHAR), ('loss', loss::VARCHAR),
        ('grad_norm', grad_norm::VARCHAR), ('learning_rate', learning_rate::VARCHAR), ('digest', digest),
        ('finished_at', finished_at::VARCHAR)
    ] AS facts
    FROM live_steps JOIN live_step_groups USING (attempt, step) JOIN chosen USING (ticket)
    UNION ALL
    SELECT 2, 'sample ' || sequence_index, [
        ('advantage', advantage::VARCHAR), ('staleness', staleness::VARCHAR), ('micro_batch', micro_batch::VARCHAR),
        ('num_trained_tokens', num_trained_tokens::VARCHAR), ('ratio_mean', ratio_mean::VARCHAR),
        ('entropy_mean', entropy_mean::VARCHAR), ('log_probs', log_probs::VARCHAR)
    ]
    FROM live_samples JOIN chosen USING (ticket, rollout_index)
    UNION ALL
    SELECT 3, 'plan', [
        ('planned_at', planned_at::VARCHAR), ('version', version::VARCHAR), ('trained', trained::VARCHAR),
        ('drop_reason', drop_reason), ('left_out_by', left_out_by)
    ]
    FROM live_plans JOIN live_step_groups USING (attempt, step) JOIN chosen USING (ticket)
    UNION ALL
    SELECT 4, 'score', [('reward', reward::VARCHAR), ('duplicate', duplicate::VARCHAR)]
    FROM scores JOIN chosen USING (ticket, rollout_index)
    UNION ALL
    SELECT 5, 'reward ' || name, [('weight', weight::VARCHAR), ('value', value::VARCHAR), ('error', error)]
    FROM rewards JOIN chosen USING (ticket, rollout_index)
    UNION ALL
    SELECT 6, 'scored group', [('scored_at', scored_at::VARCHAR), ('marks', marks::VARCHAR)]
    FROM scored_groups JOIN chosen USING (ticket)
    UNION ALL
    SELECT 7, 'rollout', [
        ('rollout_index', rollout_index::VARCHAR), ('rollout_id', rollout_id), ('seed', seed::VARCHAR),
        ('stop_reason', stop_reason), ('error', error), ('completion_text', completion_text)
    ]
    FROM rollouts JOIN chosen USING (ticket, rollout_index)
    UNION ALL
    SELECT 8, 'group', [
        ('ticket', ticket::VARCHAR), ('prompt_id', prompt_id), ('prompt', prompt::VARCHAR),
        ('facts', groups.facts::VARCHAR), ('model_version', model_version::VARCHAR), ('generator', generator),
        ('claimed_at', claimed_at::VARCHAR), ('finished_at', finished_at::VARCHAR)
    ]
    FROM groups JOIN chosen USING (ticket)
    UNION ALL
    SELECT 9 + turn_index, 'turn ' || turn_index, [
        ('prompt_ids', prompt_ids::VARCHAR), ('output_ids', output_ids::VARCHAR),
        ('output_log_probs', output_log_probs::VARCHAR), ('output_mask', output_mask::VARCHAR),
        ('output_versions', output_versions::VARCHAR)
    ]
    FROM turns JOIN chosen USING (ticket, rollout_index)
),
numbered AS (
    SELECT place, record, unnest(facts) AS fact, unnest(range(len(facts))) AS number FROM records
)
SELECT record, fact[1] AS fact, fact[2] AS value
FROM numbered
WHERE fact[2] IS NOT NULL
ORDER BY place, record, number;
