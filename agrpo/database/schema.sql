-- The tables of run.duckdb: append-only, and without keys or indexes, which halve the speed of inserting and are what
-- upstream reports of failed write-ahead logs are about. That nothing is stored twice is `ingest`'s work.
--
-- A *ticket* is a group's number in the run. Groups, rollouts, turns, scores and rewards are facts about a ticket and
-- belong to no attempt; plans, steps, samples and metrics belong to one, and views.sql says which of them count.

CREATE TABLE schema_info (version INTEGER NOT NULL);
COMMENT ON TABLE schema_info IS 'Version of this schema. A file of an older version is built again from the run folder.';

CREATE TABLE ingest (stream VARCHAR NOT NULL, number BIGINT NOT NULL);
COMMENT ON TABLE ingest IS 'Which records of the run folder are in this file; written in one transaction with their rows.';

CREATE TABLE runs (
    name VARCHAR,
    url VARCHAR,
    settings JSON,
    document JSON
);
COMMENT ON TABLE runs IS 'The run: one row.';
COMMENT ON COLUMN runs.url IS 'Run folder the rows come from.';
COMMENT ON COLUMN runs.settings IS 'Resolved settings, table by table.';
COMMENT ON COLUMN runs.document IS 'All of run.json: settings with their origins, seeds, digests.';

CREATE TABLE attempts (
    attempt INTEGER NOT NULL,
    host VARCHAR,
    pid BIGINT,
    started_at TIMESTAMPTZ
);
COMMENT ON TABLE attempts IS 'Incarnations of the learner.';

CREATE TABLE bases (
    attempt INTEGER NOT NULL,
    parent INTEGER,
    base_step BIGINT NOT NULL,
    adopted_through BIGINT NOT NULL,
    void BOOLEAN NOT NULL,
    rewind INTEGER,
    first_ticket BIGINT,
    reissue BIGINT[],
    prompts BIGINT[],
    next_prompt BIGINT
);
COMMENT ON TABLE bases IS 'Where the history of an attempt joins an older one; the view lineage reads it.';
COMMENT ON COLUMN bases.parent IS 'Attempt whose history this one continues; NULL: it began the run.';
COMMENT ON COLUMN bases.base_step IS 'Last step taken over from the parent.';
COMMENT ON COLUMN bases.adopted_through IS 'Last step whose sampled groups stay valid.';
COMMENT ON COLUMN bases.void IS 'The attempt produced nothing that counts.';
COMMENT ON COLUMN bases.rewind IS 'Wish to go back that the base fulfils, and all before it; NULL: none.';
COMMENT ON COLUMN bases.first_ticket IS 'After going back: lies above every ticket that was claimed before.';
COMMENT ON COLUMN bases.reissue IS 'Tickets that are void for ever; their prompts are given out again.';
COMMENT ON COLUMN bases.prompts IS 'Prompt numbers given out first, from first_ticket on.';
COMMENT ON COLUMN bases.next_prompt IS 'Prompt number given out after those.';

CREATE TABLE rewinds (
    number INTEGER NOT NULL,
    step BIGINT NOT NULL,
    asked_at TIMESTAMPTZ
);
COMMENT ON TABLE rewinds IS 'Wishes to go back to a step. The base that fulfils one names it: bases.rewind.';
COMMENT ON COLUMN rewinds.number IS 'Of the wish, in the order asked.';
COMMENT ON COLUMN rewinds.step IS 'Last step that was to stay.';
COMMENT ON COLUMN rewinds.asked_at IS 'When.';

CREATE TABLE groups (
    ticket BIGINT NOT NULL,
    prompt_id VARCHAR,
    prompt JSON,
    facts JSON,
    environment VARCHAR,
    epoch INTEGER,
    row_index BIGINT,
    model_version BIGINT,
    model_attempt INTEGER,
    model_step BIGINT,
    model_ordinal BIGINT,
    base INTEGER,
    claim_try INTEGER,
    generator VARCHAR,
    refusal VARCHAR,
    claimed_at TIMESTAMPTZ,
    finished_at TIMESTAMPTZ,
    num_rollouts INTEGER,
    slot_bytes BIGINT,
    concurrency INTEGER,
    concurrency_cap INTEGER,
    backpressure_seconds DOUBLE,
    interval_seconds DOUBLE,
    load_wait_seconds DOUBLE,
    ceiling_wait_seconds DOUBLE,
    score_block_seconds DOUBLE,
    num_polls INTEGER,
    kv_cache_usage DOUBLE,
    running_requests DOUBLE,
    queued_requests DOUBLE,
    preemptions BIGINT,
    retries BIGINT
);
COMMENT ON TABLE groups IS 'One generated group, or one prompt that was refused or left out by filter_prompt.';
COMMENT ON COLUMN groups.prompt_id IS 'Hash of the prompt''s content: the same question has the same id in every epoch.';
COMMENT ON COLUMN groups.prompt IS 'The prompt''s messages.';
COMMENT ON COLUMN groups.facts IS 'The other columns of the prompt''s row, which the rewards are given.';
COMMENT ON COLUMN groups.row_index IS 'Row of the dataset.';
COMMENT ON COLUMN groups.epoch IS 'Passes over the dataset before this one.';
COMMENT ON COLUMN groups.model_version IS 'Policy version of the group''s first sampled token.';
COMMENT ON COLUMN groups.model_attempt IS 'Attempt that published that version.';
COMMENT ON COLUMN groups.model_step IS 'Optimizer step whose weights the version has.';
COMMENT ON COLUMN groups.model_ordinal IS 'Publishes of the history up to that step, which staleness counts; NULL: model_version.';
COMMENT ON COLUMN groups.base IS 'Attempt under whose base the group was claimed.';
COMMENT ON COLUMN groups.refusal IS 'Why the prompt was refused; then there are no rollouts.';
COMMENT ON COLUMN groups.slot_bytes IS 'Size of the group''s slot in the run folder.';
COMMENT ON COLUMN groups.concurrency IS 'Rollouts in flight to the engine when the group began, its own included.';
COMMENT ON COLUMN groups.concurrency_cap IS 'Most rollouts that could be in flight then.';
COMMENT ON COLUMN groups.backpressure_seconds IS 'How long the group could not begin because run-ahead was used up; NULL: it did not wait.';
COMMENT ON COLUMN groups.interval_seconds IS 'Since the generator''s group before ended, or since its first version was served.';
COMMENT ON COLUMN groups.load_wait_seconds IS 'How long the group could not begin because the load cap was reached, below the hard ceiling; NULL: it did not wait.';
COMMENT ON COLUMN groups.ceiling_wait_seconds IS 'How long because async.max_concurrent_rollouts were in flight; NULL: it did not wait.';
COMMENT ON COLUMN groups.score_block_seconds IS 'How long because async.scoring_queue groups waited for scores; NULL: it did not wait.';
COMMENT ON COLUMN groups.num_polls IS 'How often the engine''s servers said how full they are in the group''s interval; 0: the columns after it but retries are NULL.';
COMMENT ON COLUMN groups.kv_cache_usage IS 'Share of the KV cache in use of the fullest server, mean over these polls.';
COMMENT ON COLUMN groups.running_requests IS 'Requests being decoded, over all servers, mean over these polls.';
COMMENT ON COLUMN groups.queued_requests IS 'Requests accepted and not scheduled, over all servers, mean over these polls.';
COMMENT ON COLUMN groups.preemptions IS 'By how much the servers'' number of preemptions rose in the interval.';
COMMENT ON COLUMN groups.retries IS 'Requests that were asked again in the interval, as the engine counts them; NULL: it has no servers, or was not asked.';

CREATE TABLE rollouts (
    ticket BIGINT NOT NULL,
    rollout_index INTEGER NOT NULL,
    rollout_id VARCHAR,
    seed BIGINT,
    stop_reason VARCHAR,
    terminated BOOLEAN,
    error VARCHAR,
    completion JSON,
    completion_text VARCHAR,
    num_prompt_tokens INTEGER,
    num_completion_tokens INTEGER,
    num_forwarded_tokens INTEGER,
    num_turns INTEGER,
    num_sequences INTEGER,
    tool_call_count INTEGER,
    tool_failure_count INTEGER,
    own_reward DOUBLE,
    model_version BIGINT,
    duration_seconds DOUBLE,
    own_prompt JSON,
    own_columns JSON,
    environment_class VARCHAR,
    reset_seconds DOUBLE,
    get_reward_seconds DOUBLE,
    completion_ids INTEGER[]
);
COMMENT ON TABLE rollouts IS 'One whole conversation for a prompt. Its reward: rollouts_with_rewards.';
COMMENT ON COLUMN rollouts.rollout_index IS 'Place in the group, from 0.';
COMMENT ON COLUMN rollouts.stop_reason IS 'stop, length, max_turns, tool_error, timeout, engine_error, environment_error or stale_in_flight.';
COMMENT ON COLUMN rollouts.terminated IS 'Whether the model ended its last turn itself.';
COMMENT ON COLUMN rollouts.error IS 'What failed, where stop_reason says that something did.';
COMMENT ON COLUMN rollouts.completion IS 'Messages after the prompt.';
COMMENT ON COLUMN rollouts.completion_text IS 'What the policy wrote: the contents of its messages, one under the other.';
COMMENT ON COLUMN rollouts.num_prompt_tokens IS 'Tokens of the first turn''s prompt.';
COMMENT ON COLUMN rollouts.num_completion_tokens IS 'Generated tokens of all turns.';
COMMENT ON COLUMN rollouts.num_forwarded_tokens IS 'Tokens of all training sequences of the rollout.';
COMMENT ON COLUMN rollouts.num_sequences IS 'Training sequences that have a trained token; above 1: turns did not continue one another.';
COMMENT ON COLUMN rollouts.own_reward IS 'A reward the rollout brought itself; part of the total at weight 1.';
COMMENT ON COLUMN rollouts.own_prompt IS 'The messages that it was asked, where its environment or a hook had a say in them; NULL: those of its group, or with a rollout_loop.rollout_func the tokens turns.prompt_ids.';
COMMENT ON COLUMN rollouts.own_columns IS 'What rollout_loop.rollout_func returned with it, by name, which the rewards are given; NULL: nothing.';
COMMENT ON COLUMN rollouts.environment_class IS 'The environment it acted in, which is also the name of the reward that it paid; NULL: none.';
COMMENT ON COLUMN rollouts.reset_seconds IS 'Of its environment''s reset, and of making an instance where none was free.';
COMMENT ON COLUMN rollouts.get_reward_seconds IS 'Of its environment''s get_reward; NULL: it was not asked.';
COMMENT ON COLUMN rollouts.model_version IS 'Policy version of the first sampled token; NULL where none was sampled.';

CREATE TABLE turns (
    ticket BIGINT NOT NULL,
    rollout_index INTEGER NOT NULL,
    turn_index INTEGER NOT NULL,
    stop_reason VARCHAR,
    prompt_ids INTEGER[],
    output_ids INTEGER[],
    output_log_probs FLOAT[],
    output_mask UTINYINT[],
    output_versions INTEGER[],
    output_sampling_mask INTEGER[][],
    top_ids INTEGER[][],
    top_logprobs FLOAT[][],
    begun_seconds DOUBLE,
    duration_seconds DOUBLE,
    drift_tokens INTEGER
);
COMMENT ON TABLE turns IS 'One sampling request: the tokens as the engine was given and returned them.';
COMMENT ON COLUMN turns.prompt_ids IS 'Whole prompt of the turn, earlier turns included.';
COMMENT ON COLUMN turns.output_ids IS 'Sampled tokens, the stop token included.';
COMMENT ON COLUMN turns.output_log_probs IS 'Per output token, under the distribution it was sampled from, in nats.';
COMMENT ON COLUMN turns.output_mask IS 'Per output token, 1: trained, 0: context only. NULL: all are trained.';
COMMENT ON COLUMN turns.output_versions IS 'Per output token, the policy version that sampled it.';
COMMENT ON COLUMN turns.output_sampling_mask IS 'Per output token, the ids that could be sampled. NULL unless recorder.topk.';
COMMENT ON COLUMN turns.top_ids IS 'Per output token, the most likely tokens. NULL unless recorder.topk.';
COMMENT ON COLUMN turns.top_logprobs IS 'Log-probs of top_ids, in nats. NULL unless recorder.topk.';
COMMENT ON COLUMN turns.begun_seconds IS 'From the rollout''s begin to the request; NULL: not known.';
COMMENT ON COLUMN turns.duration_seconds IS 'From the request to its answer; where a rollout_func made it, of all requests whose answers it holds. NULL: not known, such as of a turn that a hook made.';
COMMENT ON COLUMN turns.drift_tokens IS 'Tokens of the sequence so far that the prompt does not begin with; above 0: the turn begins another one. NULL: a first turn.';

CREATE TABLE tool_calls (
    ticket BIGINT NOT NULL,
    rollout_index INTEGER NOT NULL,
    call_index INTEGER NOT NULL,
    turn_index INTEGER,
    name VARCHAR,
    duration_seconds DOUBLE,
    failure VARCHAR,
    reason VARCHAR
);
COMMENT ON TABLE tool_calls IS 'One call of a tool, in the order the model made them. Arguments and results are in rollouts.completion.';
COMMENT ON COLUMN tool_calls.call_index IS 'Place among the rollout''s calls, from 0.';
COMMENT ON COLUMN tool_calls.turn_index IS 'Turn that made it.';
COMMENT ON COLUMN tool_calls.name IS 'Name of the tool as the model wrote it; empty where none can be read.';
COMMENT ON COLUMN tool_calls.duration_seconds IS 'From the moment it was its turn; 0 where nothing ran.';
COMMENT ON COLUMN tool_calls.failure IS 'malformed, unknown_name, bad_arguments, raised, timeout or refused; NULL: it gave a result.';
COMMENT ON COLUMN tool_calls.reason IS 'What the model was told, where it failed; of one that was refused, why.';

CREATE TABLE scored_groups (
    ticket BIGINT NOT NULL,
    prompt_id VARCHAR,
    model_version BIGINT,
    model_attempt INTEGER,
    model_step BIGINT,
    model_ordinal BIGINT,
    base INTEGER,
    marks VARCHAR[],
    refusal VARCHAR,
    left_out_by VARCHAR,
    generated_at TIMESTAMPTZ,
    scored_at TIMESTAMPTZ,
    score_seconds DOUBLE,
    score_wait_seconds DOUBLE,
    score_queue_size INTEGER
);
COMMENT ON TABLE scored_groups IS 'One group that the rewards have judged.';
COMMENT ON COLUMN scored_groups.model_attempt IS 'Attempt that published that version.';
COMMENT ON COLUMN scored_groups.model_step IS 'Optimizer step whose weights the version has.';
COMMENT ON COLUMN scored_groups.model_ordinal IS 'Publishes of the history up to that step, which staleness counts; NULL: model_version.';
COMMENT ON COLUMN scored_groups.base IS 'Attempt under whose base the group was claimed.';
COMMENT ON COLUMN scored_groups.marks IS 'What the scores mean whatever the run does with them, such as equal_rewards.';
COMMENT ON COLUMN scored_groups.left_out_by IS 'First of the run''s filters that leaves the group out; NULL: none does.';
COMMENT ON COLUMN scored_groups.score_seconds IS 'That all rewards of the group together took.';
COMMENT ON COLUMN scored_groups.score_wait_seconds IS 'From the group''s end to its scoring.';
COMMENT ON COLUMN scored_groups.score_queue_size IS 'Other finished groups that waited for scores when this one was taken.';

CREATE TABLE scores (
    ticket BIGINT NOT NULL,
    rollout_index INTEGER NOT NULL,
    reward DOUBLE,
    duplicate BOOLEAN
);
COMMENT ON TABLE scores IS 'One rollout''s total reward.';
COMMENT ON COLUMN scores.reward IS 'Weighted sum over the rewards that gave a value; NULL where none did.';
COMMENT ON COLUMN scores.duplicate IS 'Whether an earlier rollout of the group has the same tokens.';

CREATE TABLE rewards (
    ticket BIGINT NOT NULL,
    rollout_index INTEGER NOT NULL,
    name VARCHAR,
    weight DOUBLE,
    value DOUBLE,
    error VARCHAR,
    duration_seconds DOUBLE
);
COMMENT ON TABLE rewards IS 'What one reward said of one rollout.';
COMMENT ON COLUMN rewards.value IS 'Before its weight; NULL where the reward has nothing to say.';
COMMENT ON COLUMN rewards.error IS 'Why the value is missing, where something failed.';
COMMENT ON COLUMN rewards.duration_seconds IS 'Of the reward''s call for the whole group.';

CREATE TABLE reward_extras (
    ticket BIGINT NOT NULL,
    rollout_index INTEGER NOT NULL,
    reward VARCHAR,
    name VARCHAR,
    value VARCHAR,
    number DOUBLE
);
COMMENT ON TABLE reward_extras IS 'What a reward noted of one rollout with log_extra, beside its value.';
COMMENT ON COLUMN reward_extras.reward IS 'Name of the reward.';
COMMENT ON COLUMN reward_extras.name IS 'Column that log_extra was called with.';
COMMENT ON COLUMN reward_extras.value IS 'A text as it is; a number, true or false as JSON; NULL: None, or the reward failed on this rollout.';
COMMENT ON COLUMN reward_extras.number IS 'The value where it is a number; 1 for true, 0 for false.';

CREATE TABLE reward_metrics (
    ticket BIGINT NOT NULL,
    reward VARCHAR,
    name VARCHAR,
    value DOUBLE
);
COMMENT ON TABLE reward_metrics IS 'What a reward noted of a group with log_metric. A step has it beside the measures of docs/metrics.md.';
COMMENT ON COLUMN reward_metrics.reward IS 'Name of the reward.';
COMMENT ON COLUMN reward_metrics.name IS 'That log_metric was called with.';

CREATE TABLE plans (
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    version BIGINT,
    ordinal BIGINT,
    parent_digest VARCHAR,
    num_updates BIGINT,
    learning_rate DOUBLE,
    entropy_coefficient DOUBLE,
    seed BIGINT,
    publish BIGINT,
    empty BOOLEAN,
    num_trained_tokens BIGINT,
    num_oversize BIGINT,
    num_truncated BIGINT,
    num_replaced BIGINT,
    num_queued_samples BIGINT,
    micro_batches INTEGER[][],
    ranks INTEGER,
    config_digest VARCHAR,
    planned_at TIMESTAMPTZ,
    adopted_from INTEGER
);
COMMENT ON TABLE plans IS 'What decides an optimizer step, written before it. A plan consumes its groups: step_groups.';
COMMENT ON COLUMN plans.version IS 'Newest version published before the step.';
COMMENT ON COLUMN plans.ordinal IS 'Publishes of the history up to the step, its own included; NULL: see publish and version.';
COMMENT ON COLUMN plans.parent_digest IS 'Of all weights before the step.';
COMMENT ON COLUMN plans.entropy_coefficient IS 'Of the bonus for entropy, before the step; NULL: there is no bonus.';
COMMENT ON COLUMN plans.num_updates IS 'Optimizer updates of the history, the step''s included; an empty step is none.';
COMMENT ON COLUMN plans.num_replaced IS 'Dropped groups that took no place of the step, so that others came instead.';
COMMENT ON COLUMN plans.publish IS 'Version that the step''s weights are published as; NULL: not published.';
COMMENT ON COLUMN plans.empty IS 'Nothing is trained, and the weights stay as they are.';
COMMENT ON COLUMN plans.num_oversize IS 'Samples left out because they are longer than step.micro_tokens.';
COMMENT ON COLUMN plans.num_truncated IS 'Samples left out because their rollout was cut for its length (step.mask_truncated).';
COMMENT ON COLUMN plans.num_queued_samples IS 'Samples of scored groups that waited when the step''s groups began to be chosen.';
COMMENT ON COLUMN plans.micro_batches IS 'Per row, numbers of the plan''s samples: micro-batch by micro-batch, a row for each rank.';
COMMENT ON COLUMN plans.ranks IS 'Processes of the learner: a micro-batch has a row for each.';
COMMENT ON COLUMN plans.adopted_from IS 'Attempt that planned the step, where another one carries it out.';

CREATE TABLE step_groups (
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    ticket BIGINT NOT NULL,
    trained BOOLEAN NOT NULL,
    drop_reason VARCHAR,
    left_out_by VARCHAR,
    staleness BIGINT
);
COMMENT ON TABLE step_groups IS 'The groups a plan consumes.';
COMMENT ON COLUMN step_groups.drop_reason IS 'Why a group is not trained, such as equal_rewards or stale.';
COMMENT ON COLUMN step_groups.left_out_by IS 'Filter that left the group out, where drop_reason is left_out.';
COMMENT ON COLUMN step_groups.staleness IS 'Weight updates between sampling and training; NULL where no sample was planned.';

CREATE TABLE steps (
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    loss DOUBLE,
    grad_norm DOUBLE,
    aux_loss DOUBLE,
    policy_loss DOUBLE,
    entropy_coefficient DOUBLE,
    digest VARCHAR,
    reference_digest VARCHAR,
    num_tokens BIGINT,
    num_prompts BIGINT,
    publish BIGINT,
    empty BOOLEAN,
    started_at TIMESTAMPTZ,
    finished_at TIMESTAMPTZ,
    step_seconds DOUBLE,
    wait_seconds DOUBLE,
    read_seconds DOUBLE,
    plan_seconds DOUBLE,
    forward_seconds DOUBLE,
    backward_seconds DOUBLE,
    optimizer_seconds DOUBLE,
    digest_seconds DOUBLE,
    record_seconds DOUBLE,
    sync_seconds DOUBLE,
    sync_transfer_seconds DOUBLE,
    sync_pause_seconds DOUBLE,
    sync_barrier_seconds DOUBLE,
    checkpoint_seconds DOUBLE,
    other_seconds DOUBLE,
    num_syncs INTEGER,
    peak_flops_per_second DOUBLE
);
COMMENT ON TABLE steps IS 'One finished optimizer step. The steps that count: live_steps.';
COMMENT ON COLUMN steps.policy_loss IS 'The loss without the bonus for entropy; NULL: there is no bonus.';
COMMENT ON COLUMN steps.entropy_coefficient IS 'Of the bonus for entropy, after the step; NULL: there is no bonus.';
COMMENT ON COLUMN steps.digest IS 'Of all weights after the step.';
COMMENT ON COLUMN steps.reference_digest IS 'Of the reference policy, where it moved after the step; NULL: it stayed, or there is none.';
COMMENT ON COLUMN steps.num_tokens IS 'Tokens forwarded since the start of the run.';
COMMENT ON COLUMN steps.num_prompts IS 'Prompts consumed since the start of the run.';
COMMENT ON COLUMN steps.step_seconds IS 'Wall time since the step before was done: the sum of its parts, which follow.';
COMMENT ON COLUMN steps.wait_seconds IS 'Waiting for scored groups.';
COMMENT ON COLUMN steps.read_seconds IS 'Reading scores and groups.';
COMMENT ON COLUMN steps.plan_seconds IS 'Advantages, rows, and writing the plan.';
COMMENT ON COLUMN steps.digest_seconds IS 'Digests of all weights.';
COMMENT ON COLUMN steps.record_seconds IS 'Writing what the step before had done.';
COMMENT ON COLUMN steps.sync_seconds IS 'Publishing weights, their transfer included.';
COMMENT ON COLUMN steps.sync_transfer_seconds IS 'Writing and sending the weights: a part of sync_seconds, not added again.';
COMMENT ON COLUMN steps.sync_pause_seconds IS 'Pausing and resuming the servers that weights are sent into: another part of it.';
COMMENT ON COLUMN steps.sync_barrier_seconds IS 'Waiting for the learner''s other processes: another part of it.';
COMMENT ON COLUMN steps.checkpoint_seconds IS 'Writing a checkpoint to recover from.';
COMMENT ON COLUMN steps.other_seconds IS 'The rest: laying out rows, statistics, telling others.';
COMMENT ON COLUMN steps.num_syncs IS 'Versions published in that time.';
COMMENT ON COLUMN steps.peak_flops_per_second IS 'Most that all training devices together can do in the type they compute in; NULL: unknown.';

CREATE TABLE step_rows (
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    row_index INTEGER NOT NULL,
    num_samples INTEGER,
    num_tokens BIGINT,
    attention_cost BIGINT,
    num_shared_terms BIGINT,
    flops BIGINT
);
COMMENT ON TABLE step_rows IS 'The rows of a finished step, as they were forwarded: micro-batch by micro-batch, one for each rank.';
COMMENT ON COLUMN step_rows.num_tokens IS 'Forwarded tokens; a shared one counts once.';
COMMENT ON COLUMN step_rows.attention_cost IS 'Pairs of a token and one that it attends to.';
COMMENT ON COLUMN step_rows.num_shared_terms IS 'Loss terms on a token that carries another sample''s term already.';
COMMENT ON COLUMN step_rows.flops IS 'Of the model''s arithmetic over the row, forward and backward; NULL: unknown for this model.';

CREATE TABLE samples (
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    ticket BIGINT NOT NULL,
    rollout_index INTEGER NOT NULL,
    sequence_index INTEGER NOT NULL,
    micro_batch INTEGER,
    advantage DOUBLE,
    staleness BIGINT,
    num_tokens BIGINT,
    num_trained_tokens BIGINT,
    entropy_mean DOUBLE,
    logprob_difference_mean DOUBLE,
    logprob_difference_max DOUBLE,
    ratio_min DOUBLE,
    ratio_mean DOUBLE,
    ratio_max DOUBLE,
    masked_share DOUBLE,
    clipped_low_share DOUBLE,
    clipped_high_share DOUBLE,
    capped_share DOUBLE,
    phi DOUBLE,
    correction_min DOUBLE,
    correction_mean DOUBLE,
    correction_max DOUBLE,
    sampler_mass DOUBLE,
    kl DOUBLE,
    log_probs FLOAT[],
    entropies FLOAT[]
);
COMMENT ON TABLE samples IS 'What the learner saw of one training sequence in one step, over its trained tokens.';
COMMENT ON COLUMN samples.sequence_index IS 'Place among the rollout''s sequences; above 0 where turns did not continue one another.';
COMMENT ON COLUMN samples.num_tokens IS 'Tokens of the sequence, those that it shares with others of its row included.';
COMMENT ON COLUMN samples.entropy_mean IS 'Nats.';
COMMENT ON COLUMN samples.logprob_difference_mean IS 'Absolute difference between sampler and recomputed log-prob, nats.';
COMMENT ON COLUMN samples.ratio_mean IS 'Importance ratio, before any masking.';
COMMENT ON COLUMN samples.log_probs IS 'Of each trained token under the policy before the step, in the order of the sequence, nats.';
COMMENT ON COLUMN samples.entropies IS 'Of each trained token''s distribution, nats.';
COMMENT ON COLUMN samples.masked_share IS 'Tokens left out of the loss because their ratio is out of bounds.';
COMMENT ON COLUMN samples.clipped_low_share IS 'Tokens below the trust region whose advantage is negative; NULL: the loss has no such region.';
COMMENT ON COLUMN samples.clipped_high_share IS 'Tokens above the trust region whose advantage is positive; NULL: the loss has no such region.';
COMMENT ON COLUMN samples.capped_share IS 'Tokens whose ratio is cut as a weight, and whose advantage is positive; NULL: the loss cuts none.';
COMMENT ON COLUMN samples.phi IS 'Weight of the whole sample; NULL: the loss gives it none.';
COMMENT ON COLUMN samples.correction_min IS 'Smallest weight of the old policy over the sampler, after its bounds; NULL: there is no correction.';
COMMENT ON COLUMN samples.correction_mean IS 'Mean weight of the old policy over the sampler; NULL: there is no correction.';
COMMENT ON COLUMN samples.correction_max IS 'Largest weight of the old policy over the sampler; NULL: there is no correction.';
COMMENT ON COLUMN samples.sampler_mass IS 'What the sampler''s most likely tokens hold of its distribution; NULL: the loss reads none of them.';
COMMENT ON COLUMN samples.kl IS 'Estimate of the divergence from the reference policy, before its coefficient, nats; NULL: there is no penalty.';

CREATE TABLE metrics (
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    name VARCHAR NOT NULL,
    value DOUBLE
);
COMMENT ON TABLE metrics IS 'Measures the learner logged, by documented name. Those that count: live_metrics.';

CREATE TABLE versions (
    attempt INTEGER NOT NULL,
    version BIGINT NOT NULL,
    step BIGINT,
    ordinal BIGINT,
    digest VARCHAR,
    folder VARCHAR,
    published_at TIMESTAMPTZ
);
COMMENT ON TABLE versions IS 'Published weights. Those that count: live_versions.';
COMMENT ON COLUMN versions.step IS 'Optimizer step whose weights these are.';
COMMENT ON COLUMN versions.ordinal IS 'Publishes of the history up to that step, this one included; NULL: version.';

CREATE TABLE acknowledgements (
    engine VARCHAR NOT NULL,
    version BIGINT NOT NULL,
    acknowledged_at TIMESTAMPTZ,
    probe_difference DOUBLE
);
COMMENT ON TABLE acknowledgements IS 'An engine serves a version, and its probe agreed with the learner''s.';
COMMENT ON COLUMN acknowledgements.engine IS 'Incarnation of the engine''s owner.';
COMMENT ON COLUMN acknowledgements.probe_difference IS 'Largest absolute difference of the probe''s log-probs, nats.';

CREATE TABLE events (
    stream VARCHAR NOT NULL,
    number BIGINT NOT NULL,
    kind VARCHAR,
    happened_at TIMESTAMPTZ,
    attempt INTEGER,
    payload JSON
);
COMMENT ON TABLE events IS 'What stages had to tell, by writer and number.';

CREATE TABLE whatif_runs (
    whatif VARCHAR NOT NULL,
    kind VARCHAR,
    part VARCHAR,
    settings JSON,
    keep BOOLEAN,
    begun_at TIMESTAMPTZ
);
COMMENT ON TABLE whatif_runs IS 'What-ifs asked of the run with agrpo whatif: another reward or advantage over its recorded rollouts.';
COMMENT ON COLUMN whatif_runs.kind IS 'reward or advantage.';
COMMENT ON COLUMN whatif_runs.part IS 'Name of the reward or advantage.';
COMMENT ON COLUMN whatif_runs.settings IS 'Its settings that were given.';
COMMENT ON COLUMN whatif_runs.keep IS 'Whether the reward is added to the recorded ones instead of standing in their place.';
COMMENT ON COLUMN whatif_runs.begun_at IS 'When it was first asked.';

CREATE TABLE whatif_groups (
    whatif VARCHAR NOT NULL,
    ticket BIGINT NOT NULL,
    drop_reason_before VARCHAR,
    drop_reason VARCHAR
);
COMMENT ON TABLE whatif_groups IS 'One group of a what-if.';
COMMENT ON COLUMN whatif_groups.drop_reason_before IS 'Why the recorded scores keep the group from being trained; NULL: they do not.';
COMMENT ON COLUMN whatif_groups.drop_reason IS 'Why the scores of the what-if would; NULL: they would not.';

CREATE TABLE whatif_rollouts (
    whatif VARCHAR NOT NULL,
    ticket BIGINT NOT NULL,
    rollout_index INTEGER NOT NULL,
    reward_before DOUBLE,
    reward DOUBLE,
    advantage_before DOUBLE,
    advantage DOUBLE,
    error VARCHAR
);
COMMENT ON TABLE whatif_rollouts IS 'One rollout of a what-if. Facts of the run are in rollouts and scores, and stay as they are.';
COMMENT ON COLUMN whatif_rollouts.reward_before IS 'Total reward as recorded; NULL where nothing was scored.';
COMMENT ON COLUMN whatif_rollouts.reward IS 'Total reward of the what-if; NULL where nothing was scored.';
COMMENT ON COLUMN whatif_rollouts.advantage_before IS 'By the run''s own advantage, from reward_before.';
COMMENT ON COLUMN whatif_rollouts.advantage IS 'Of the what-if, from reward.';
COMMENT ON COLUMN whatif_rollouts.error IS 'Why the reward of the what-if gave no value, where it failed.';
