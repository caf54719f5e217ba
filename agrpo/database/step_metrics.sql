-- The documented measures of every finished step that counts, from the rows alone: the names, units and definitions of
-- docs/metrics.md. What the learner logged under the same names is in live_metrics.
--
-- step_totals holds each measure of a step as a total and what it is divided by: a mean over rollouts as the sum over the
-- step's rollouts and their number, a rate as tokens and seconds. So windows of any size are exact, and step_metrics is
-- windows of one step. Measures cover the groups that the step's plan consumed, trained and dropped. A measure with
-- nothing to say is absent.

CREATE MACRO mean_over(items) AS {'total': sum(items)::DOUBLE, 'weight': count(items)::DOUBLE};
COMMENT ON MACRO mean_over IS 'In step_totals: a mean over the items of a GROUP BY that have a value.';

CREATE MACRO weighted_mean_over(items, weights) AS
    {'total': sum(items * weights)::DOUBLE, 'weight': sum(weights)::DOUBLE};
COMMENT ON MACRO weighted_mean_over IS 'In step_totals: a mean over what the items of a GROUP BY hold, such as tokens.';

CREATE MACRO ratio_of(total, weight) AS {'total': total::DOUBLE, 'weight': weight::DOUBLE};
COMMENT ON MACRO ratio_of IS 'In step_totals: a total and what it is divided by.';

CREATE MACRO once(value) AS {'total': value::DOUBLE, 'weight': (value IS NOT NULL)::DOUBLE};
COMMENT ON MACRO once IS 'In step_totals: what the step has once.';

CREATE MACRO sum_of_all(items, others) AS CASE WHEN count(items) = count(others) THEN coalesce(sum(items), 0) END;
COMMENT ON MACRO sum_of_all IS 'In step_totals: a sum of a GROUP BY, where it is known of every row that has the other; else NULL.';

CREATE MACRO share_of_time(items, seconds, known) AS
    {'total': coalesce(sum(items), 0)::DOUBLE, 'weight': CASE WHEN count(known) > 0 THEN any_value(seconds) END::DOUBLE};
COMMENT ON MACRO share_of_time IS 'In step_totals: the share of the seconds of a GROUP BY that items took, where rows with the third are known.';

CREATE VIEW step_totals AS
WITH finished AS (
    SELECT
        *, NOT empty AS updated, forward_seconds + backward_seconds AS compute_seconds,
        (SELECT any_value(settings->>'$.step.micro_tokens')::DOUBLE FROM runs) AS micro_tokens,
        step_seconds * coalesce((SELECT any_value(settings->>'$.workers.generators')::DOUBLE FROM runs), 1)
            AS generators_seconds,
        (
            SELECT
                coalesce(any_value(json_array_length(settings, '$.tools.functions')), 0) > 0
                OR any_value(settings->>'$.environments.factory') IS NOT NULL
                OR coalesce(any_value(len(json_keys(settings, '$.environments.factories'))), 0) > 0
            FROM runs
        ) AS has_tools,
        (SELECT coalesce(any_value(settings->>'$.loss.level') = 'sequence', false) FROM runs) AS ratios_of_samples,
        (SELECT coalesce(any_value(settings->>'$.correction.mode') LIKE 'sequence%', false) FROM runs)
            AS corrections_of_samples
    FROM live_steps
),
consumed AS (
    SELECT
        step, ticket, trained, concurrency, concurrency_cap, backpressure_seconds, load_wait_seconds, ceiling_wait_seconds,
        score_block_seconds, num_polls, kv_cache_usage, running_requests, queued_requests, preemptions, retries,
        score_seconds, score_wait_seconds, score_queue_size, scored_at, num_oversize, step_groups.left_out_by AS left_out_by,
        coalesce(drop_reason = 'stale', false) AS stale,
        coalesce(drop_reason = 'oversize', false) AS oversize,
        list_has_any(marks, ['refused_prompt', 'filtered']) AS refused,
        list_has_any(marks, ['equal_rewards', 'too_few_scores', 'failed']) AS flat
    FROM finished
    JOIN step_groups USING (attempt, step)
    LEFT JOIN scored_groups USING (ticket)
    LEFT JOIN groups USING (ticket)
    WHERE coalesce(drop_reason NOT IN ('void_base', 'reissued'), true)
),
consumed_rollouts AS (
    SELECT
        step, ticket, rollout_index, num_prompt_tokens > 0 AS answered, num_completion_tokens AS length, terminated AS ended,
        num_turns, num_sequences, duration_seconds, duplicate, reward, stale, oversize, stop_reason = 'max_turns' AS exhausted,
        reset_seconds, get_reward_seconds
    FROM rollouts
    JOIN scores USING (ticket, rollout_index)
    JOIN consumed USING (ticket)
),
consumed_calls AS (
    SELECT
        step, ticket, rollout_index, turn_index, name, failure, duration_seconds,
        coalesce(failure NOT IN ('malformed', 'unknown_name'), true) AS known,
        coalesce(failure IN ('raised', 'timeout'), true) AS ran
    FROM tool_calls
    JOIN consumed USING (ticket)
),
transitions AS (
    SELECT step, drift_tokens FROM turns JOIN consumed USING (ticket) WHERE drift_tokens IS NOT NULL
),
group_rewards AS (
    SELECT step, ticket, avg(reward) AS reward_mean, stddev_samp(reward) AS reward_std
    FROM consumed_rollouts
    GROUP BY step, ticket
),
trained_samples AS (
    SELECT
        samples.*, flat, scored_at, planned_at, reward, reward_std,
        CASE WHEN ratios_of_samples THEN 1 ELSE samples.num_trained_tokens END AS num_ratios,
        CASE WHEN clipped_low_share IS NOT NULL THEN num_ratios END AS num_clippable,
        CASE WHEN capped_share IS NOT NULL THEN num_ratios END AS num_cuttable
    FROM finished
    JOIN samples USING (attempt, step)
    JOIN consumed USING (step, ticket)
    JOIN scores USING (ticket, rollout_index)
    JOIN group_rewards USING (step, ticket)
),
rewards_of_groups AS (
    SELECT
        step, ticket, name, sum(value) AS total, count(value) AS num_values, stddev_samp(value) AS std,
        count_if(answered AND error IS NOT NULL) AS num_failed, count_if(answered) AS num_answered
    FROM rewards JOIN consumed_rollouts USING (ticket, rollout_index)
    GROUP BY step, ticket, name
),
samples_of_groups AS (
    SELECT step, ticket, count(*) AS num_samples FROM trained_samples GROUP BY step, ticket
),
reward_measures AS (
    SELECT step, 'rewards/' || name || '/mean' AS name, sum(total) AS total, sum(num_values) AS weight
    FROM rewards_of_groups
    GROUP BY step, name
    UNION ALL
    SELECT step, 'rewards/' || name || '/failed_frac', sum(num_failed), sum(num_answered)
    FROM rewards_of_groups
    GROUP BY step, name
    UNION ALL
    SELECT step, 'rewards/' || name || '/group_std', sum(std * num_samples), sum(num_samples)
    FROM rewards_of_groups JOIN samples_of_groups USING (step, ticket)
    WHERE std IS NOT NULL
    GROUP BY step, name
),
filter_measures AS (
    SELECT step, 'filters/' || left_out_by || '/left_out_count' AS name, count(*) AS total, 1 AS weight
    FROM consumed
    WHERE left_out_by IS NOT NULL
    GROUP BY step, left_out_by
),
noted AS (
    SELECT
        step, name, sum(value) AS total, count(*) AS num_values, min(value) AS smallest, max(value) AS largest,
        string_split(string_split(name, '/')[-1], '_') AS words
    FROM reward_metrics JOIN consumed USING (ticket)
    GROUP BY step, name
),
noted_measures AS (
    SELECT
        step, name,
        CASE
            WHEN list_contains(words, 'max') AND NOT list_contains(words, 'count') THEN largest
            WHEN list_contains(words, 'min') AND NOT list_contains(words, 'count') THEN smallest
            ELSE total
        END AS total,
        CASE WHEN list_has_any(words, ['count', 'max', 'min']) THEN 1 ELSE num_values END AS weight
    FROM noted
),
calls_by_name AS (
    SELECT
        step, name, count(*) AS num_calls, count(failure) AS num_failed, sum(duration_seconds) FILTER (ran) AS seconds,
        count(*) FILTER (ran) AS num_ran
    FROM consumed_calls
    WHERE known
    GROUP BY step, name
),
measures_by_tool AS (
    SELECT step, 'tools/' || name || '/latency_s' AS name, seconds AS total, num_ran AS weight FROM calls_by_name
    UNION ALL
    SELECT step, 'tools/' || name || '/call_count', num_calls, 1 FROM calls_by_name
    UNION ALL
    SELECT step, 'tools/' || name || '/failure_count', num_failed, 1 FROM calls_by_name
),
calls_of_steps AS (
    SELECT
        step, count(*) AS num_calls, count(failure) AS num_failed, count_if(failure = 'unknown_name') AS num_unknown,
        sum(duration_seconds) FILTER (ran) AS seconds, count(*) FILTER (ran) AS num_ran,
        count(DISTINCT (ticket, rollout_index, turn_index)) AS num_turns
    FROM consumed_calls
    GROUP BY step
),
rollouts_of_steps AS (
    SELECT step, count(*) AS num_rollouts, count_if(exhausted) AS num_exhausted FROM consumed_rollouts GROUP BY step
),
tool_measures AS (
    SELECT
        step,
        ratio_of(coalesce(num_calls, 0), num_rollouts) AS "tools/call_frequency",
        ratio_of(coalesce(num_failed, 0), coalesce(num_calls, 0)) AS "tools/failure_frequency",
        ratio_of(seconds, num_ran) AS "tools/latency_s",
        once(coalesce(num_unknown, 0)) AS "tools/unknown_name_count",
        ratio_of(num_calls, num_turns) AS "tools/parallel_calls_mean",
        ratio_of(num_exhausted, num_rollouts) AS "tools/loop_exhausted_frac"
    FROM finished
    LEFT JOIN rollouts_of_steps USING (step)
    LEFT JOIN calls_of_steps USING (step)
    WHERE has_tools
),
environment_measures AS (
    SELECT step, mean_over(reset_seconds) AS "env/reset_s", mean_over(get_reward_seconds) AS "env/reward_s"
    FROM consumed_rollouts
    GROUP BY step
),
transition_measures AS (
    SELECT
        step,
        mean_over((drift_tokens > 0)::INTEGER) AS "rollout/fork_frac",
        mean_over(drift_tokens) AS "rollout/drift_tokens_mean",
        once(max(drift_tokens)) AS "rollout/drift_tokens_max"
    FROM transitions
    GROUP BY step
),
step_measures AS (
    SELECT
        step,
        once(learning_rate) AS learning_rate,
        once(planned_entropy_coefficient) AS entropy_coef,
        once(CASE WHEN updated THEN policy_loss END) AS policy_loss,
        once(CASE WHEN updated THEN loss END) AS loss,
        once(CASE WHEN updated THEN grad_norm END) AS grad_norm,
        once(CASE WHEN updated THEN aux_loss END) AS aux_loss,
        once(num_queued_samples) AS "rollout/queue_size",
        once(step_seconds) AS "perf/step_s",
        once(CASE WHEN updated THEN compute_seconds END) AS "perf/fwd_bwd_s",
        once(CASE WHEN updated THEN forward_seconds END) AS "perf/fwd_s",
        once(CASE WHEN updated THEN optimizer_seconds END) AS "perf/optimizer_s",
        once(wait_seconds) AS "perf/rollout_wait_s",
        ratio_of(sync_seconds, num_syncs) AS "perf/weight_sync_s",
        ratio_of(sync_transfer_seconds, num_syncs) AS "perf/weight_sync_transfer_s",
        ratio_of(sync_pause_seconds, CASE WHEN sync_pause_seconds > 0 THEN num_syncs END)
            AS "perf/weight_sync_pause_s",
        ratio_of(sync_barrier_seconds, CASE WHEN sync_barrier_seconds > 0 THEN num_syncs END)
            AS "perf/weight_sync_barrier_s"
    FROM finished
),
row_measures AS (
    SELECT
        step,
        once(sum(coalesce(sum(num_tokens), 0)) OVER (ORDER BY step)) AS num_tokens,
        once(coalesce(sum(num_tokens), 0)) AS "batch/forwarded_tokens_per_step",
        once(count(num_tokens) / any_value(coalesce(ranks, 1))) AS "batch/microbatches_per_step",
        ratio_of(sum(num_tokens) - (any_value(num_trained_tokens) - sum(num_shared_terms)), sum(num_tokens))
            AS "batch/masked_token_frac",
        ratio_of(coalesce(sum(num_tokens) FILTER (num_samples = 0), 0), sum(num_tokens)) AS "batch/pad_frac",
        mean_over(num_samples) AS "batch/samples_per_row",
        mean_over(num_tokens) AS "batch/row_tokens_mean",
        once(max(num_tokens)) AS "batch/row_tokens_max",
        mean_over(num_tokens / micro_tokens) AS "batch/row_fill_frac",
        once(max(attention_cost) / avg(attention_cost)) AS "batch/row_imbalance",
        ratio_of(sum(num_tokens), any_value(CASE WHEN updated THEN compute_seconds END))
            AS "perf/fwd_bwd_forwarded_tokens_per_s",
        ratio_of(coalesce(sum(num_tokens), 0), any_value(step_seconds)) AS "perf/wall_clock_forwarded_tokens_per_s",
        ratio_of(sum_of_all(flops, num_tokens),
            any_value(CASE WHEN updated THEN compute_seconds * peak_flops_per_second END)) AS "perf/fwd_bwd_mfu",
        ratio_of(sum_of_all(flops, num_tokens), any_value(step_seconds * peak_flops_per_second))
            AS "perf/wall_clock_mfu"
    FROM (SELECT * EXCLUDE (num_tokens) FROM finished) LEFT JOIN step_rows USING (attempt, step)
    GROUP BY step
),
group_measures AS (
    SELECT
        step,
        once(count_if(trained)) AS "batch/groups_per_step",
        mean_over(concurrency) AS "rollout/concurrency",
        mean_over(concurrency_cap) AS "rollout/concurrency_cap",
        mean_over(backpressure_seconds) AS "rollout/backpressure_s",
        mean_over(load_wait_seconds) AS "rollout/load_wait_s",
        mean_over(ceiling_wait_seconds) AS "rollout/ceiling_wait_s",
        mean_over(score_block_seconds) AS "rollout/score_block_s",
        share_of_time(backpressure_seconds, generators_seconds, concurrency) AS "rollout/backpressure_frac",
        share_of_time(load_wait_seconds, generators_seconds, concurrency) AS "rollout/load_wait_frac",
        share_of_time(ceiling_wait_seconds, generators_seconds, concurrency) AS "rollout/ceiling_wait_frac",
        share_of_time(score_block_seconds, generators_seconds, concurrency) AS "rollout/score_block_frac",
        weighted_mean_over(kv_cache_usage, CASE WHEN num_polls > 0 THEN num_polls END)
            AS "rollout/vllm_kv_cache_usage_frac",
        weighted_mean_over(running_requests, CASE WHEN num_polls > 0 THEN num_polls END)
            AS "rollout/vllm_running_requests",
        weighted_mean_over(queued_requests, CASE WHEN num_polls > 0 THEN num_polls END) AS "rollout/vllm_queued_requests",
        once(sum(preemptions)) AS "rollout/vllm_preemption_count",
        once(sum(retries)) AS "rollout/vllm_retry_count",
        once(count_if(refused)) AS "rollout/unasked_count",
        mean_over(score_queue_size) AS "rollout/score_queue_size",
        mean_over(score_seconds) AS "rollout/score_s",
        mean_over(score_wait_seconds) AS "rollout/score_wait_s",
        mean_over(CASE WHEN NOT refused THEN flat::INTEGER END) AS frac_zero_std_groups,
        mean_over(CASE WHEN flat THEN reward_mean END) AS reward_zero_std_groups
    FROM finished
    LEFT JOIN consumed USING (step)
    LEFT JOIN group_rewards USING (step, ticket)
    GROUP BY step
),
rollout_measures AS (
    SELECT
        step,
        mean_over(CASE WHEN answered THEN length END) AS "completions/mean_length",
        once(min(CASE WHEN answered THEN length END)) AS "completions/min_length",
        once(max(CASE WHEN answered THEN length END)) AS "completions/max_length",
        mean_over(CASE WHEN answered AND ended THEN length END) AS "completions/mean_terminated_length",
        once(min(CASE WHEN answered AND ended THEN length END)) AS "completions/min_terminated_length",
        once(max(CASE WHEN answered AND ended THEN length END)) AS "completions/max_terminated_length",
        mean_over(CASE WHEN answered THEN 1 - ended::INTEGER END) AS "completions/clipped_ratio",
        mean_over(CASE WHEN answered THEN duplicate::INTEGER END) AS "completions/duplicate_frac",
        mean_over(reward) AS reward,
        mean_over(duration_seconds) AS "rollout/duration_s",
        ratio_of(coalesce(sum(length), 0), any_value(step_seconds)) AS "rollout/generated_tokens_per_s",
        mean_over(CASE WHEN answered THEN num_turns END) AS "rollout/turns_mean",
        once(max(CASE WHEN answered THEN num_turns END)) AS "rollout/turns_max",
        mean_over(CASE WHEN answered THEN num_sequences END) AS "rollout/samples_per_rollout",
        once(count_if(NOT answered)) AS "rollout/failed_count",
        once(coalesce(sum(num_sequences) FILTER (stale), 0)) AS "sample/dropped_stale_count",
        once(any_value(finished.num_oversize) + coalesce(sum(num_sequences) FILTER (oversize), 0)) AS "batch/dropped_oversize_count",
        once(any_value(finished.num_truncated)) AS "batch/masked_truncated_count"
    FROM finished LEFT JOIN consumed_rollouts USING (step)
    GROUP BY step
),
sample_measures AS (
    SELECT
        step,
        once(count(ticket)) AS "batch/samples_per_step",
        once(coalesce(sum(s.num_trained_tokens), 0)) AS "batch/trained_tokens_per_step",
        ratio_of(coalesce(sum(s.num_trained_tokens), 0), any_value(step_seconds))
            AS "perf/wall_clock_trained_tokens_per_s",
        mean_over(s.num_tokens) AS "sample/forwarded_tokens_mean",
        once(max(s.num_tokens)) AS "sample/forwarded_tokens_max",
        mean_over(s.num_trained_tokens) AS "sample/trained_tokens_mean",
        mean_over((epoch_us(s.planned_at) - epoch_us(scored_at)) / 1e6) AS "sample/time_in_queue_s",
        mean_over(staleness) AS "sample/staleness_mean",
        once(max(staleness)) AS "sample/staleness_max",
        mean_over(CASE WHEN NOT flat THEN reward END) AS reward_trained,
        mean_over(reward_std) AS reward_group_std,
        weighted_mean_over(entropy_mean, s.num_trained_tokens) AS entropy,
        weighted_mean_over(logprob_difference_mean, s.num_trained_tokens) AS "sampling/sampling_logp_difference/mean",
        once(max(logprob_difference_max)) AS "sampling/sampling_logp_difference/max",
        weighted_mean_over(kl, CASE WHEN kl IS NOT NULL THEN s.num_trained_tokens END) AS kl,
        mean_over(phi) AS "vespo/phi_seq_mean",
        once(min(coalesce(correction_min, ratio_min))) AS "sampling/importance_sampling_ratio/min",
        weighted_mean_over(
            coalesce(correction_mean, ratio_mean),
            CASE WHEN corrections_of_samples AND correction_mean IS NOT NULL THEN 1 ELSE s.num_trained_tokens END
        ) AS "sampling/importance_sampling_ratio/mean",
        once(max(coalesce(correction_max, ratio_max))) AS "sampling/importance_sampling_ratio/max",
        weighted_mean_over(masked_share, s.num_trained_tokens) AS "sampling/masked_mean",
        weighted_mean_over(sampler_mass, CASE WHEN sampler_mass IS NOT NULL THEN s.num_trained_tokens END)
            AS "sampling/sampler_mass",
        weighted_mean_over(clipped_low_share + clipped_high_share, num_clippable) AS "clip_ratio/region_mean",
        weighted_mean_over(clipped_low_share, num_clippable) AS "clip_ratio/low_mean",
        once(min(clipped_low_share)) AS "clip_ratio/low_min",
        weighted_mean_over(clipped_high_share, num_clippable) AS "clip_ratio/high_mean",
        once(max(clipped_high_share)) AS "clip_ratio/high_max",
        weighted_mean_over(capped_share, num_cuttable) AS cispo_clip_ratio
    FROM finished LEFT JOIN trained_samples AS s USING (step)
    GROUP BY step
),
packing AS (
    SELECT step, ratio_of(("sample/forwarded_tokens_mean").total, ("batch/row_tokens_mean").total) AS "batch/packing_ratio"
    FROM sample_measures JOIN row_measures USING (step)
),
wide AS (
    FROM step_measures
    JOIN row_measures USING (step)
    JOIN group_measures USING (step)
    JOIN rollout_measures USING (step)
    JOIN sample_measures USING (step)
    JOIN packing USING (step)
    LEFT JOIN tool_measures USING (step)
    LEFT JOIN environment_measures USING (step)
    LEFT JOIN transition_measures USING (step)
)
SELECT step, name, measured.total AS total, measured.weight AS weight
FROM (UNPIVOT wide ON COLUMNS(* EXCLUDE (step)) INTO NAME name VALUE measured)
WHERE measured.weight > 0 OR name = 'tools/failure_frequency' -- 0 of 0 calls: NaN (A-288)
UNION ALL
FROM reward_measures WHERE weight > 0
UNION ALL
FROM filter_measures
UNION ALL
FROM noted_measures
UNION ALL
FROM measures_by_tool WHERE weight > 0;
COMMENT ON VIEW step_totals IS 'The documented measures of every step that counts, and those that rewards noted, each as a total and what it is divided by, so that windows of steps add up exactly.';
COMMENT ON COLUMN step_totals.name IS 'As docs/metrics.md has it.';
COMMENT ON COLUMN step_totals.total IS 'Sum over the items of the measure: rollouts, tokens, groups, seconds.';
COMMENT ON COLUMN step_totals.weight IS 'What the total is divided by; 1 for what a step has once.';

CREATE MACRO window_metrics(size) AS TABLE
WITH windows AS (
    SELECT
        step,
        (step - 1) // CASE
            WHEN size >= 1 AND size = floor(size) THEN size::BIGINT
            ELSE error('window_metrics(size): ' || coalesce(size::VARCHAR, 'NULL') || ' is no number of steps; pass 1, 2, 3, …')
        END AS window_index
    FROM live_steps
),
bounds AS (
    SELECT window_index, min(step) AS first_step, max(step) AS last_step FROM windows GROUP BY window_index
),
totals AS (
    SELECT
        window_index, name, sum(total) AS total, sum(weight) AS weight, min(total) AS smallest, max(total) AS largest
    FROM step_totals JOIN windows USING (step)
    GROUP BY window_index, name
),
rules AS (
    SELECT name, string_split(string_split(name, '/')[-1], '_') AS words FROM (SELECT DISTINCT name FROM totals)
)
SELECT
    window_index, first_step, last_step, name,
    CASE
        WHEN list_contains(words, 'count') THEN total
        WHEN list_contains(words, 'max') OR name = 'num_tokens' THEN largest
        WHEN list_contains(words, 'min') THEN smallest
        ELSE total / weight
    END AS value
FROM totals
JOIN bounds USING (window_index)
JOIN rules USING (name);
COMMENT ON MACRO TABLE window_metrics IS 'window_metrics(size): the documented measures of windows of size steps, as docs/metrics.md says. Columns: window_index from 0, first_step, last_step, name, value.';

CREATE VIEW step_metrics AS
SELECT attempt, step, name, value
FROM window_metrics(1) JOIN live_steps ON step = first_step;
COMMENT ON VIEW step_metrics IS 'The documented measures of every step that counts, computed from the rows: compare live_metrics.';
