-- The documented measures of every finished step that counts, from the rows alone: the names, units and definitions of
-- docs/spec/async_grpo.md, sections 20 and 21. What the learner logged under the same names is in live_metrics.
--
-- Measures of scoring cover the groups that the step's plan consumed, trained and dropped; means of per-sample means are
-- weighted with trained tokens. A measure with nothing to say is absent.

CREATE VIEW step_metrics AS
WITH consumed AS (
    SELECT attempt, step, ticket, trained, drop_reason, marks
    FROM live_step_groups
    JOIN live_steps USING (attempt, step)
    JOIN scored_groups USING (ticket)
),
consumed_rollouts AS (
    SELECT
        attempt, step, num_prompt_tokens > 0 AS answered, num_completion_tokens, stop_reason = 'stop' AS terminated,
        duplicate, reward, coalesce(drop_reason = 'stale', false) AS stale,
        coalesce(drop_reason = 'oversize', false) AS oversize
    FROM consumed
    JOIN rollouts USING (ticket)
    JOIN scores USING (ticket, rollout_index)
),
completions AS (
    SELECT
        attempt, step,
        avg(num_completion_tokens) AS "completions/mean_length",
        min(num_completion_tokens) AS "completions/min_length",
        max(num_completion_tokens) AS "completions/max_length",
        avg(num_completion_tokens) FILTER (terminated) AS "completions/mean_terminated_length",
        min(num_completion_tokens) FILTER (terminated) AS "completions/min_terminated_length",
        max(num_completion_tokens) FILTER (terminated) AS "completions/max_terminated_length",
        avg((NOT terminated)::INTEGER) AS "completions/clipped_ratio",
        avg(duplicate::INTEGER) AS "completions/duplicate_frac"
    FROM consumed_rollouts
    WHERE answered
    GROUP BY attempt, step
),
group_measures AS (
    SELECT
        attempt, step,
        avg(list_has_any(marks, ['equal_rewards', 'too_few_scores', 'failed'])::INTEGER)
            FILTER (NOT list_contains(marks, 'refused_prompt')) AS frac_zero_std_groups
    FROM consumed
    GROUP BY attempt, step
),
reward_measures AS (
    SELECT attempt, step, avg(reward) AS reward
    FROM consumed_rollouts
    GROUP BY attempt, step
),
trained_measures AS (
    SELECT attempt, step, avg(reward) AS reward_trained
    FROM live_samples
    JOIN consumed USING (attempt, step, ticket)
    JOIN scores USING (ticket, rollout_index)
    WHERE NOT list_has_any(marks, ['equal_rewards', 'too_few_scores', 'failed'])
    GROUP BY attempt, step
),
sample_measures AS (
    SELECT
        attempt, step,
        sum(entropy_mean * num_trained_tokens) / sum(num_trained_tokens) AS entropy,
        sum(logprob_difference_mean * num_trained_tokens) / sum(num_trained_tokens)
            AS "sampling/sampling_logp_difference/mean",
        max(logprob_difference_max) AS "sampling/sampling_logp_difference/max",
        min(ratio_min) AS "sampling/importance_sampling_ratio/min",
        sum(ratio_mean * num_trained_tokens) / sum(num_trained_tokens) AS "sampling/importance_sampling_ratio/mean",
        max(ratio_max) AS "sampling/importance_sampling_ratio/max",
        sum(masked_share * num_trained_tokens) / sum(num_trained_tokens) AS "sampling/masked_mean",
        sum((clipped_low_share + clipped_high_share) * num_trained_tokens) / sum(num_trained_tokens)
            AS "clip_ratio/region_mean",
        sum(clipped_low_share * num_trained_tokens) / sum(num_trained_tokens) AS "clip_ratio/low_mean",
        min(clipped_low_share) AS "clip_ratio/low_min",
        sum(clipped_high_share * num_trained_tokens) / sum(num_trained_tokens) AS "clip_ratio/high_mean",
        max(clipped_high_share) AS "clip_ratio/high_max",
        avg(staleness) AS "sample/staleness_mean",
        max(staleness) AS "sample/staleness_max"
    FROM live_samples
    GROUP BY attempt, step
),
step_samples AS (
    SELECT
        attempt, step, count(ticket) AS num_samples,
        coalesce(sum(live_samples.num_tokens), 0) AS num_tokens,
        coalesce(sum(live_samples.num_trained_tokens), 0) AS num_trained_tokens
    FROM live_steps LEFT JOIN live_samples USING (attempt, step)
    GROUP BY attempt, step
),
step_measures AS (
    SELECT
        attempt, step,
        sum(s.num_tokens) OVER (ORDER BY step) AS num_tokens,
        s.num_tokens AS "batch/forwarded_tokens_per_step",
        s.num_trained_tokens AS "batch/trained_tokens_per_step",
        num_samples AS "batch/samples_per_step",
        (SELECT count(*) FROM live_step_groups AS g WHERE g.attempt = s.attempt AND g.step = s.step AND g.trained)
            AS "batch/groups_per_step",
        len(micro_batches) AS "batch/microbatches_per_step",
        num_oversize + (
            SELECT count(*) FROM consumed_rollouts AS r
            WHERE r.attempt = s.attempt AND r.step = s.step AND oversize AND answered
        ) AS "batch/dropped_oversize_count",
        (
            SELECT count(*) FROM consumed_rollouts AS r
            WHERE r.attempt = s.attempt AND r.step = s.step AND stale AND answered
        ) AS "sample/dropped_stale_count"
    FROM step_samples AS s JOIN live_plans USING (attempt, step)
),
wide AS (
    SELECT attempt, step, COLUMNS(* EXCLUDE (attempt, step))::DOUBLE
    FROM step_measures
    LEFT JOIN completions USING (attempt, step)
    LEFT JOIN group_measures USING (attempt, step)
    LEFT JOIN reward_measures USING (attempt, step)
    LEFT JOIN trained_measures USING (attempt, step)
    LEFT JOIN sample_measures USING (attempt, step)
)
SELECT attempt, step, name, value
FROM (UNPIVOT wide ON COLUMNS(* EXCLUDE (attempt, step)) INTO NAME name VALUE value);
COMMENT ON VIEW step_metrics IS 'The documented measures of every step that counts, computed from the rows: compare live_metrics.';
