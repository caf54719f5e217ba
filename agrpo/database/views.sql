-- The views of run.duckdb. A crash, a rollback or a racing learner leaves steps that do not count: no row is ever
-- deleted, the views leave them out.

CREATE VIEW lineage AS
WITH RECURSIVE chain AS (
    SELECT attempt, parent, base_step, NULL::BIGINT AS last_step
    FROM bases
    WHERE attempt = (SELECT max(attempt) FROM bases WHERE NOT void)
    UNION ALL
    SELECT bases.attempt, bases.parent, bases.base_step, least(chain.last_step, chain.base_step)
    FROM chain JOIN bases ON bases.attempt = chain.parent
)
SELECT attempt, base_step + 1 AS first_step, last_step
FROM chain
WHERE last_step IS NULL OR last_step > base_step;
COMMENT ON VIEW lineage IS 'The attempts that make up the run''s history, and which steps of each; last_step NULL: all it has.';

CREATE VIEW claims AS
SELECT number AS ticket FROM ingest WHERE stream = 'claims';
COMMENT ON VIEW claims IS 'The tickets that a generator has claimed.';

CREATE VIEW live_plans AS
SELECT plans.*
FROM plans JOIN lineage USING (attempt)
WHERE step >= first_step AND (last_step IS NULL OR step <= last_step);
COMMENT ON VIEW live_plans IS 'The plans that count, one per step.';

CREATE VIEW live_steps AS
SELECT
    steps.*, plans.version, plans.learning_rate, plans.seed, plans.num_trained_tokens, plans.num_oversize,
    plans.num_queued_samples, plans.planned_at, plans.adopted_from
FROM steps
JOIN lineage USING (attempt)
LEFT JOIN plans USING (attempt, step)
WHERE steps.step >= first_step AND (last_step IS NULL OR steps.step <= last_step);
COMMENT ON VIEW live_steps IS 'The finished steps that count, one per step, with what their plan decided.';

CREATE VIEW live_step_groups AS
SELECT
    step_groups.attempt, step, ticket, trained, drop_reason,
    coalesce(step_groups.staleness, live_plans.version - scored_groups.model_version) AS staleness
FROM step_groups
JOIN live_plans USING (attempt, step)
LEFT JOIN scored_groups USING (ticket);
COMMENT ON VIEW live_step_groups IS 'The groups that plans which count consume, trained or dropped.';

CREATE VIEW live_samples AS
SELECT samples.*
FROM samples JOIN lineage USING (attempt)
WHERE step >= first_step AND (last_step IS NULL OR step <= last_step);
COMMENT ON VIEW live_samples IS 'The samples of the steps that count.';

CREATE VIEW live_step_rows AS
SELECT step_rows.*
FROM step_rows JOIN lineage USING (attempt)
WHERE step >= first_step AND (last_step IS NULL OR step <= last_step);
COMMENT ON VIEW live_step_rows IS 'The rows (micro-batches) of the steps that count.';

CREATE VIEW live_metrics AS
SELECT metrics.*
FROM metrics JOIN lineage USING (attempt)
WHERE step >= first_step AND (last_step IS NULL OR step <= last_step);
COMMENT ON VIEW live_metrics IS 'The logged measures of the steps that count.';

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
)
SELECT
    ticket,
    CASE WHEN consumed.ticket IS NULL THEN 'pending' WHEN trained THEN 'trained' ELSE 'dropped' END AS status,
    CASE
        WHEN consumed.ticket IS NOT NULL THEN drop_reason
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
    groups.refusal,
    groups.claimed_at,
    groups.finished_at AS generated_at,
    scored_groups.scored_at
FROM known
LEFT JOIN consumed USING (ticket)
LEFT JOIN groups USING (ticket)
LEFT JOIN scored_groups USING (ticket);
COMMENT ON VIEW group_status IS 'What became of every ticket: trained, dropped (for which reason) or pending (how far it has come).';

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
