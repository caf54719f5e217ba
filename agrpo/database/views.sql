-- The views of run.duckdb. A crash, a rollback or a racing learner leaves steps that do not count: no row is ever
-- deleted, the views leave them out.

CREATE VIEW members AS
WITH RECURSIVE chain AS (
    SELECT *, NULL::BIGINT AS last_step, NULL::BIGINT AS through_step
    FROM bases
    WHERE attempt = (SELECT max(attempt) FROM bases WHERE NOT void)
    UNION ALL
    SELECT bases.*, least(chain.last_step, chain.base_step), least(chain.through_step, chain.adopted_through)
    FROM chain JOIN bases ON bases.attempt = chain.parent
)
FROM chain;
COMMENT ON VIEW members IS 'The attempts of the run''s history, whether they have steps of their own or not, with their bases.';
COMMENT ON COLUMN members.last_step IS 'Last of its steps that counts; NULL: all it has.';
COMMENT ON COLUMN members.through_step IS 'Last step whose version counts, and what was sampled by it; NULL: all of them. Beyond last_step where the steps between were carried out again with the same groups.';

CREATE VIEW lineage AS
SELECT attempt, base_step + 1 AS first_step, last_step
FROM members
WHERE last_step IS NULL OR last_step > base_step;
COMMENT ON VIEW lineage IS 'The attempts that make up the run''s history, and which steps of each; last_step NULL: all it has.';

CREATE VIEW branches AS
WITH RECURSIVE chain AS (
    SELECT attempt AS newest, attempt, parent, base_step, NULL::BIGINT AS last_step FROM bases WHERE NOT void
    UNION ALL
    SELECT newest, bases.attempt, bases.parent, bases.base_step, least(chain.last_step, chain.base_step)
    FROM chain JOIN bases ON bases.attempt = chain.parent
),
left_out AS (
    SELECT steps.attempt, step, min(later.attempt) AS left_by
    FROM steps
    JOIN bases AS later ON later.attempt > steps.attempt AND NOT later.void
    LEFT JOIN chain ON chain.newest = later.attempt AND chain.attempt = steps.attempt
        AND step > chain.base_step AND (chain.last_step IS NULL OR step <= chain.last_step)
    WHERE chain.attempt IS NULL
    GROUP BY steps.attempt, step
)
SELECT
    steps.attempt,
    steps.step,
    lineage.attempt IS NOT NULL AND left_by IS NULL AS live,
    left_by,
    CASE
        WHEN bases.attempt IS NULL THEN NULL
        WHEN bases.rewind IS NOT NULL THEN 'rewind'
        WHEN steps.step <= bases.adopted_through THEN 'diverged'
        ELSE 'superseded'
    END AS left_because,
    bases.rewind,
    coalesce(rewinds.asked_at, attempts.started_at) AS left_at,
    steps.digest,
    steps.finished_at
FROM steps
LEFT JOIN lineage
    ON lineage.attempt = steps.attempt AND steps.step >= first_step AND (last_step IS NULL OR steps.step <= last_step)
LEFT JOIN left_out ON left_out.attempt = steps.attempt AND left_out.step = steps.step
LEFT JOIN bases ON bases.attempt = left_by
LEFT JOIN attempts ON attempts.attempt = left_by
LEFT JOIN rewinds ON rewinds.number = bases.rewind;
COMMENT ON VIEW branches IS 'Every finished step of every attempt: whether it counts, and if not, since when.';
COMMENT ON COLUMN branches.live IS 'Whether the step counts.';
COMMENT ON COLUMN branches.left_by IS 'First attempt whose history goes on without the step.';
COMMENT ON COLUMN branches.left_because IS 'rewind: the run went back before it. diverged: carried out again with the same groups, since its replay gave other weights. superseded: its learner had been replaced when it finished.';
COMMENT ON COLUMN branches.rewind IS 'Wish to go back that left it.';
COMMENT ON COLUMN branches.left_at IS 'When that was asked, or when the attempt that left it began.';

CREATE VIEW claims AS
SELECT number AS ticket FROM ingest WHERE stream = 'claims';
COMMENT ON VIEW claims IS 'The tickets that a generator has claimed.';

CREATE VIEW live_plans AS
SELECT plans.*, coalesce(ordinal - (publish IS NOT NULL)::BIGINT, version) AS ordinal_before
FROM plans JOIN lineage USING (attempt)
WHERE step >= first_step AND (last_step IS NULL OR step <= last_step);
COMMENT ON VIEW live_plans IS 'The plans that count, one per step.';
COMMENT ON COLUMN live_plans.ordinal_before IS 'Publishes of the history before the step, from which staleness counts back.';

CREATE VIEW live_versions AS
SELECT versions.*
FROM versions JOIN members USING (attempt)
WHERE through_step IS NULL OR step <= through_step;
COMMENT ON VIEW live_versions IS 'The published versions that count: what they sampled may be trained.';

CREATE VIEW live_steps AS
SELECT
    steps.*, plans.version, plans.learning_rate, plans.seed, plans.num_trained_tokens, plans.num_oversize, plans.num_truncated,
    plans.num_queued_samples, plans.ranks, plans.planned_at, plans.adopted_from,
    plans.entropy_coefficient AS planned_entropy_coefficient
FROM steps
JOIN lineage USING (attempt)
LEFT JOIN plans USING (attempt, step)
WHERE steps.step >= first_step AND (last_step IS NULL OR steps.step <= last_step);
COMMENT ON VIEW live_steps IS 'The finished steps that count, one per step, with what their plan decided.';

CREATE MACRO is_void(reason) AS coalesce(reason IN ('void_version', 'void_base', 'reissued'), false);
COMMENT ON MACRO is_void IS 'Whether a group was given up since the run went back.';

CREATE VIEW live_step_groups AS
SELECT
    step_groups.attempt, step, ticket, trained, drop_reason, step_groups.left_out_by,
    CASE
        WHEN is_void(drop_reason) THEN NULL
        ELSE coalesce(
            step_groups.staleness, ordinal_before - coalesce(scored_groups.model_ordinal, scored_groups.model_version))
    END AS staleness
FROM step_groups
JOIN live_plans USING (attempt, step)
LEFT JOIN scored_groups USING (ticket);
COMMENT ON VIEW live_step_groups IS 'The groups that plans which count consume, trained or dropped.';
COMMENT ON COLUMN live_step_groups.staleness IS 'Weight updates between sampling and training, or the plan that dropped it; NULL where it was not scored, or is void.';

CREATE VIEW live_samples AS
SELECT samples.*
FROM samples JOIN lineage USING (attempt)
WHERE step >= first_step AND (last_step IS NULL OR step <= last_step);
COMMENT ON VIEW live_samples IS 'The samples of the steps that count.';

CREATE VIEW live_step_rows AS
SELECT step_rows.*
FROM step_rows JOIN lineage USING (attempt)
WHERE step >= first_step AND (last_step IS NULL OR step <= last_step);
COMMENT ON VIEW live_step_rows IS 'The rows of the steps that count.';

CREATE VIEW live_metrics AS
SELECT metrics.*
FROM metrics JOIN lineage USING (attempt)
WHERE step >= first_step AND (last_step IS NULL OR step <= last_step);
COMMENT ON VIEW live_metrics IS 'The logged measures of the steps that count.';

CREATE VIEW void_tickets AS
WITH rewound AS (
    SELECT attempt, first_ticket, reissue FROM members WHERE first_ticket IS NOT NULL
),
given_up AS (
    SELECT unnest(reissue) AS ticket, 'reissued' AS reason FROM rewound
    UNION ALL
    SELECT ticket, 'void_base' FROM groups JOIN rewound ON ticket >= first_ticket AND base < attempt
    UNION ALL
    SELECT ticket, 'void_version'
    FROM groups LEFT JOIN members ON attempt = model_attempt
    WHERE model_step IS NOT NULL AND (attempt IS NULL OR model_step > through_step) AND EXISTS (FROM members)
)
-- The strongest reason is the first of the alphabet.
SELECT ticket, min(reason) AS reason FROM given_up GROUP BY ticket;
COMMENT ON VIEW void_tickets IS 'Tickets that the run gave up by going back. A step that counts drops them; till then they are pending.';
COMMENT ON COLUMN void_tickets.reason IS 'reissued: part of the future that was left. void_base: claimed by a generator that had not seen it. void_version: sampled by weights that no longer count.';

CREATE VIEW group_status AS
WITH consumed AS (
    SELECT
        ticket,
        bool_or(trained) AS trained,
        arg_min(drop_reason, step) AS drop_reason,
        arg_min(attempt, step) AS attempt,
        min(step) AS step,
        list(step ORDER BY step) AS steps,
        arg_min(staleness, step) AS staleness
    FROM live_step_groups
    GROUP BY ticket
),
known AS (
    SELECT ticket FROM claims
    UNION SELECT ticket FROM groups
    UNION SELECT ticket FROM scored_groups
    UNION SELECT ticket FROM consumed
    UNION SELECT ticket FROM void_tickets
)
SELECT
    ticket,
    CASE WHEN consumed.ticket IS NULL THEN 'pending' WHEN trained THEN 'trained' ELSE 'dropped' END AS status,
    CASE
        WHEN consumed.ticket IS NOT NULL THEN drop_reason
        WHEN void_tickets.ticket IS NOT NULL THEN void_tickets.reason
        WHEN scored_groups.ticket IS NOT NULL THEN 'scored'
        WHEN groups.ticket IS NOT NULL THEN 'generated'
        ELSE 'claimed'
    END AS reason,
    consumed.attempt,
    step,
    steps,
    staleness,
    groups.prompt_id,
    groups.model_version,
    groups.model_attempt,
    groups.model_step,
    groups.refusal,
    groups.claimed_at,
    groups.finished_at AS generated_at,
    scored_groups.scored_at
FROM known
LEFT JOIN consumed USING (ticket)
LEFT JOIN void_tickets USING (ticket)
LEFT JOIN groups USING (ticket)
LEFT JOIN scored_groups USING (ticket);
COMMENT ON COLUMN group_status.step IS 'First step that consumed the group; NULL: none yet.';
COMMENT ON COLUMN group_status.steps IS 'Every step that consumed it: one, since a ticket is consumed once.';
COMMENT ON VIEW group_status IS 'What became of every ticket: trained, dropped (for which reason) or pending (how far it has come, or why it is void).';

CREATE VIEW rollouts_with_rewards AS
WITH group_rewards AS (
    SELECT ticket, avg(reward) AS group_reward_mean, stddev_samp(reward) AS group_reward_std
    FROM scores
    GROUP BY ticket
),
used AS (
    SELECT ticket, rollout_index, arg_min(advantage, step) AS advantage
    FROM live_samples
    GROUP BY ticket, rollout_index
)
SELECT
    rollouts.*, scores.reward, scores.duplicate, group_reward_mean, group_reward_std, advantage,
    status, reason, attempt, step, staleness
FROM rollouts
LEFT JOIN scores USING (ticket, rollout_index)
LEFT JOIN group_rewards USING (ticket)
LEFT JOIN used USING (ticket, rollout_index)
LEFT JOIN group_status USING (ticket);
COMMENT ON VIEW rollouts_with_rewards IS 'Every rollout with its total reward, its group''s mean and sample standard deviation, the advantage it was trained with, and what became of its group.';
COMMENT ON COLUMN rollouts_with_rewards.error IS 'What failed, where stop_reason says that something did.';
COMMENT ON COLUMN rollouts_with_rewards.step IS 'Step that consumed its group; NULL: none yet.';

CREATE VIEW prompts AS
WITH group_rewards AS (
    SELECT ticket, count(reward) AS num_scored, avg(reward) AS reward_mean, sum(reward) AS total,
        count(*) FILTER (reward >= 1) AS num_passed
    FROM scores
    GROUP BY ticket
)
SELECT
    prompt_id,
    any_value(row_index) AS row_index,
    any_value(prompt)->>'$[#-1].content' AS question,
    count(*) AS num_groups,
    sum(num_rollouts)::BIGINT AS num_rollouts,
    sum(total) / sum(num_scored) AS reward_mean,
    sum(num_passed) / sum(num_scored) AS pass_rate,
    arg_min(reward_mean, ticket) AS first_reward_mean,
    arg_max(reward_mean, ticket) AS last_reward_mean,
    min(ticket) AS first_ticket,
    max(ticket) AS last_ticket
FROM groups LEFT JOIN group_rewards USING (ticket)
GROUP BY prompt_id;
COMMENT ON VIEW prompts IS 'Every prompt that was asked: how often, and how well it went, over all its rollouts.';
COMMENT ON COLUMN prompts.question IS 'Content of the prompt''s last message.';
COMMENT ON COLUMN prompts.num_groups IS 'How often the prompt was asked.';
COMMENT ON COLUMN prompts.num_rollouts IS 'Completions of the prompt.';
COMMENT ON COLUMN prompts.reward_mean IS 'Mean reward of its scored rollouts.';
COMMENT ON COLUMN prompts.pass_rate IS 'Share of its scored rollouts with a reward of 1 or more.';
COMMENT ON COLUMN prompts.first_reward_mean IS 'Mean reward of the first group that was scored.';
COMMENT ON COLUMN prompts.last_reward_mean IS 'Mean reward of the newest group that was scored.';
COMMENT ON COLUMN prompts.first_ticket IS 'Group that asked it first.';
COMMENT ON COLUMN prompts.last_ticket IS 'Group that asked it last.';

CREATE MACRO trained_only(tokens, mask) AS
    CASE WHEN mask IS NULL THEN tokens ELSE list_where(tokens, mask::BOOLEAN[]) END;
COMMENT ON MACRO trained_only IS 'Of a list with one entry per output token, those of the trained ones: output_mask.';

CREATE VIEW trained_turns AS
WITH continued AS (
    SELECT DISTINCT ticket, rollout_index FROM turns WHERE turn_index > 0
),
following AS (
    SELECT *, lag(prompt_ids || output_ids) OVER (PARTITION BY ticket, rollout_index ORDER BY turn_index) AS before
    FROM turns SEMI JOIN continued USING (ticket, rollout_index)
),
numbered AS (
    SELECT *, count(*) FILTER (prompt_ids[:len(before)] <> before)
        OVER (PARTITION BY ticket, rollout_index ORDER BY turn_index) AS sequence_index
    FROM following
),
placed AS (
    SELECT ticket, rollout_index, turn_index, output_ids, output_log_probs, output_mask, output_versions,
        0 AS sequence_index, 0 AS num_before
    FROM turns ANTI JOIN continued USING (ticket, rollout_index)
    UNION ALL
    SELECT ticket, rollout_index, turn_index, output_ids, output_log_probs, output_mask, output_versions,
        sequence_index, coalesce(sum(len(trained_only(output_ids, output_mask))) OVER (
            PARTITION BY ticket, rollout_index, sequence_index ORDER BY turn_index
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::BIGINT
    FROM numbered
)
SELECT
    attempt, step, ticket, rollout_index, sequence_index, turn_index, advantage, staleness,
    trained_only(range(len(output_ids)), output_mask) AS token_indices,
    trained_only(output_ids, output_mask) AS token_ids,
    trained_only(output_versions, output_mask) AS model_versions,
    trained_only(output_log_probs, output_mask) AS sampler_log_probs,
    log_probs[num_before + 1 : num_before + len(trained_only(output_ids, output_mask))] AS log_probs,
    entropies[num_before + 1 : num_before + len(trained_only(output_ids, output_mask))] AS entropies
FROM placed JOIN live_samples USING (ticket, rollout_index, sequence_index);
COMMENT ON VIEW trained_turns IS 'Every turn that a step which counts trained, with lists of one entry per trained token: sampled beside learned.';
COMMENT ON COLUMN trained_turns.token_indices IS 'Places in the turn''s output, from 0.';
COMMENT ON COLUMN trained_turns.token_ids IS 'In the model''s vocabulary.';
COMMENT ON COLUMN trained_turns.model_versions IS 'Policy version that sampled each token.';
COMMENT ON COLUMN trained_turns.sampler_log_probs IS 'Under the distribution each was sampled from, nats.';
COMMENT ON COLUMN trained_turns.log_probs IS 'Under the policy before the step, nats.';
COMMENT ON COLUMN trained_turns.entropies IS 'Of the policy''s distribution for each token, nats.';

CREATE VIEW token_log_probs AS
WITH tokens AS (
    SELECT
        attempt, step, ticket, rollout_index, sequence_index, turn_index, unnest(token_indices) AS token_index,
        unnest(token_ids) AS token_id, unnest(model_versions) AS model_version, advantage, staleness,
        unnest(sampler_log_probs) AS sampler_log_prob, unnest(log_probs) AS log_prob, unnest(entropies) AS entropy
    FROM trained_turns
)
SELECT *, exp(log_prob::DOUBLE - sampler_log_prob) AS ratio FROM tokens;
COMMENT ON VIEW token_log_probs IS 'Every trained token of the steps that count: log-prob when it was sampled, and when it was trained.';
COMMENT ON COLUMN token_log_probs.token_index IS 'Place in the turn''s output, from 0.';
COMMENT ON COLUMN token_log_probs.token_id IS 'In the model''s vocabulary.';
COMMENT ON COLUMN token_log_probs.model_version IS 'Policy version that sampled the token.';
COMMENT ON COLUMN token_log_probs.sampler_log_prob IS 'Under the distribution it was sampled from, nats.';
COMMENT ON COLUMN token_log_probs.log_prob IS 'Under the policy before the step, nats.';
COMMENT ON COLUMN token_log_probs.entropy IS 'Of the policy''s distribution for the token, nats.';
COMMENT ON COLUMN token_log_probs.ratio IS 'Importance ratio, exp(log_prob - sampler_log_prob), before any masking.';

CREATE VIEW step_times AS
SELECT attempt, step, part, seconds
FROM (
    UNPIVOT (
        SELECT
            attempt, step, wait_seconds AS wait, read_seconds AS read, plan_seconds AS plan, forward_seconds AS forward,
            backward_seconds AS backward, optimizer_seconds AS optimizer, digest_seconds AS digest,
            record_seconds AS record, sync_seconds AS sync, checkpoint_seconds AS checkpoint, other_seconds AS other
        FROM live_steps
    )
    ON COLUMNS(* EXCLUDE (attempt, step)) INTO NAME part VALUE seconds
);
COMMENT ON VIEW step_times IS 'Where the wall time of every step that counts went: its parts, which add up to steps.step_seconds.';
COMMENT ON COLUMN step_times.part IS 'wait, read, plan, forward, backward, optimizer, digest, record, sync, checkpoint or other: see steps.';
COMMENT ON COLUMN step_times.seconds IS 'Wall time.';

CREATE VIEW settings AS
WITH nodes AS (
    SELECT fullkey[3:] AS setting, value, type, runs.document->'$.settings.origins' AS origins
    FROM runs, json_tree(runs.settings)
    WHERE fullkey NOT LIKE '%]' AND type <> 'OBJECT' AND coalesce(json_type(value, '$[0]'), '') <> 'OBJECT'
),
known AS (
    SELECT DISTINCT key, value->>'$' AS origin FROM runs, json_each(runs.document->'$.settings.origins')
)
SELECT
    setting,
    any_value(nodes.value) AS value,
    coalesce(arg_max(origin, len(key)), 'default') AS origin
FROM nodes
LEFT JOIN known ON setting = key OR starts_with(setting, key || '.') OR starts_with(setting, key || '[')
GROUP BY setting;
COMMENT ON VIEW settings IS 'Every setting of the run, and where its value comes from.';
COMMENT ON COLUMN settings.setting IS 'Table and key, such as step.groups or rewards[0].weight.';
COMMENT ON COLUMN settings.value IS 'As the run uses it.';
COMMENT ON COLUMN settings.origin IS 'The run file, --set, or default.';

CREATE VIEW schema_relations AS
SELECT table_name AS relation, 'table' AS kind, comment FROM duckdb_tables() WHERE NOT internal
UNION ALL SELECT view_name, 'view', comment FROM duckdb_views() WHERE NOT internal
UNION ALL SELECT DISTINCT function_name, 'macro', comment FROM duckdb_functions()
WHERE NOT internal AND function_type LIKE '%macro';
COMMENT ON VIEW schema_relations IS 'The tables, views and macros of this database.';
COMMENT ON COLUMN schema_relations.relation IS 'Name of the table, view or macro.';
COMMENT ON COLUMN schema_relations.kind IS 'table, view or macro.';
COMMENT ON COLUMN schema_relations.comment IS 'What it holds.';

CREATE VIEW schema_columns AS
SELECT table_name AS relation, column_name, data_type AS column_type, column_index, comment
FROM duckdb_columns() WHERE NOT internal;
COMMENT ON VIEW schema_columns IS 'The columns of every table and view.';
COMMENT ON COLUMN schema_columns.relation IS 'Name of the table or view.';
COMMENT ON COLUMN schema_columns.column_name IS 'Name of the column.';
COMMENT ON COLUMN schema_columns.column_type IS 'Type in DuckDB''s SQL.';
COMMENT ON COLUMN schema_columns.column_index IS 'Place in the table or view, from 1.';
COMMENT ON COLUMN schema_columns.comment IS 'What it holds.';
