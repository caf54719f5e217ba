"""Names: every measure that a run logs, its unit, what it is, and how a window of steps adds it up (docs/metrics.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean


class Rule(StrEnum):
    """How the values of several steps become one (A-275 to A-279)."""

    MEAN = "mean"
    """Over all items of the window: what the measure sums, over what it counts."""
    SUM = "sum"
    LARGEST = "largest"
    SMALLEST = "smallest"
    NEWEST = "newest"
    """A running total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One documented measure."""

    name: str
    """`{name}` stands for a reward's or a filter's name, `{tool}` for a tool's."""
    unit: str
    meaning: str
    over: str
    """What a mean is over, of what an extreme is taken, or when a step has the measure once."""
    row: str
    """Row of docs/spec/async_grpo.md or grpo.md."""

    @property
    def rule(self) -> Rule:
        return rule_of(self.name)


def rule_of(name: str) -> Rule:
    """The rule of a measure, from whole words of its name's last part: `mean_terminated_length` is no minimum."""
    words = name.rpartition("/")[2].split("_")
    if name == "num_tokens":
        return Rule.NEWEST
    found = [rule for word, rule in _WORDS.items() if word in words]
    return found[0] if found else Rule.MEAN


def added_up(name: str, values: Sequence[float]) -> float:
    """Numbers of equal weight under one name as one, by the name's rule."""
    rule = rule_of(name)
    if rule is Rule.SUM:
        return math.fsum(values)
    if rule is Rule.LARGEST:
        return max(values)
    return min(values) if rule is Rule.SMALLEST else fmean(values)


def measure_named(name: str) -> Measure | None:
    """What is documented of a logged name; None: it is none of ours."""
    if name in _EXACT:
        return _EXACT[name]
    return next((measure for pattern, measure in _PATTERNS if pattern.fullmatch(name)), None)


_WORDS = {"count": Rule.SUM, "max": Rule.LARGEST, "min": Rule.SMALLEST}


def _measure(name: str, unit: str, row: str, over: str, meaning: str) -> Measure:
    return Measure(name=name, unit=unit, meaning=meaning, over=over, row=row)


_ANSWERED = "rollouts with an answer"
_GROUPS = "consumed groups"
_TOKENS = "trained tokens"
_SAMPLES = "trained samples"
_RATIOS = "trained tokens, or samples that have one ratio"
_ENDED = "rollouts that the model ended"
_UPDATES = "steps that trained"
_STEP_TIME = "wall seconds of the steps"
_GENERATORS_TIME = "wall seconds of the steps, for each generator"
_SYNCS = "weight syncs"
_PARTED = "weight syncs of steps that have it"
_WAITED = "groups that waited"
_POLLS = "polls of the servers"
_CALLS = "tool calls"
_RAN = "tool calls that ran"
_TRANSITIONS = "transitions from a turn to the next"

MEASURES: tuple[Measure, ...] = (
    _measure(
        "num_tokens", "tokens", "A-282", "steps", "Forwarded since the start of the run; a shared token counts once."
    ),
    _measure("completions/mean_length", "tokens", "A-283", _ANSWERED, "Generated tokens of a rollout."),
    _measure("completions/min_length", "tokens", "A-283", _ANSWERED, "The shortest."),
    _measure("completions/max_length", "tokens", "A-283", _ANSWERED, "The longest."),
    _measure("completions/mean_terminated_length", "tokens", "A-284", _ENDED, "Generated tokens of a rollout."),
    _measure("completions/min_terminated_length", "tokens", "A-284", _ENDED, "The shortest."),
    _measure("completions/max_terminated_length", "tokens", "A-284", _ENDED, "The longest."),
    _measure("completions/clipped_ratio", "share", "A-285", _ANSWERED, "Cut before the model ended them."),
    _measure(
        "completions/duplicate_frac",
        "share",
        "A-286",
        _ANSWERED,
        "Equal, token by token, to an earlier one of the group.",
    ),
    _measure("tools/call_frequency", "calls", "A-287", "rollouts, failed ones too", "Tool calls of a rollout."),
    _measure("tools/failure_frequency", "share", "A-288", _CALLS, "Gave no result; NaN without calls."),
    _measure("rewards/{name}/mean", "reward", "A-289", "values that the reward gave", "Before the reward's weight."),
    _measure(
        "rewards/{name}/group_std", "reward", "A-290", _SAMPLES, "Sample standard deviation of its values in the group."
    ),
    _measure(
        "rewards/{name}/failed_frac",
        "share",
        "agrpo",
        _ANSWERED,
        "The reward raised, hung or died, and gave no value.",
    ),
    _measure("reward", "reward", "A-291", "scored rollouts", "Weighted sum of the rewards, dropped groups included."),
    _measure(
        "reward_group_std", "reward", "A-292", _SAMPLES, "Sample standard deviation of the summed rewards in the group."
    ),
    _measure("reward_trained", "reward", "A-293", "trained samples whose group's rewards differ", "Summed reward."),
    _measure(
        "reward_zero_std_groups",
        "reward",
        "A-294",
        "groups with equal rewards or one score",
        "The group's mean reward; of rewards 0 and 1, the share of them that passed whole.",
    ),
    _measure(
        "frac_zero_std_groups",
        "share",
        "A-295",
        "consumed groups whose prompt was asked",
        "Equal rewards, or fewer than two scores.",
    ),
    _measure(
        "sampling/sampling_logp_difference/mean",
        "nats",
        "A-296",
        _TOKENS,
        "Between log-prob when sampled and when trained, absolute.",
    ),
    _measure("sampling/sampling_logp_difference/max", "nats", "A-296", _TOKENS, "The largest."),
    _measure("sampling/importance_sampling_ratio/min", "ratio", "A-297", _TOKENS, "The smallest."),
    _measure(
        "sampling/importance_sampling_ratio/mean",
        "ratio",
        "A-297",
        _TOKENS,
        "Probability when trained over probability when sampled, before any masking; cut at e^±20. With a correction: its "
        "weights after their bounds, of tokens or of samples.",
    ),
    _measure("sampling/importance_sampling_ratio/max", "ratio", "A-297", _TOKENS, "The largest."),
    _measure("sampling/masked_mean", "share", "A-298", _TOKENS, "Left out of the loss: the ratio is out of bounds."),
    _measure(
        "sampling/sampler_mass",
        "share",
        "A-299",
        _TOKENS,
        "Of the sampler's distribution, what its most likely tokens hold.",
    ),
    _measure("entropy", "nats", "A-300", _TOKENS, "Of the policy's distribution for the token."),
    _measure(
        "kl",
        "nats",
        "G-255",
        _TOKENS,
        "Divergence from the reference policy as it is penalised, before its coefficient.",
    ),
    _measure("policy_loss", "loss", "G-251", _UPDATES, "The loss without the bonus for entropy."),
    _measure("entropy_coef", "coefficient", "G-253", "steps", "Of the bonus for entropy, before the step."),
    _measure("aux_loss", "loss", "A-301", _UPDATES, "Of balancing a mixture's experts, before its coefficient."),
    _measure("clip_ratio/region_mean", "share", "A-302", _RATIOS, "Outside the trust region, where the clip acts."),
    _measure("clip_ratio/low_mean", "share", "A-303", _RATIOS, "Below it, with a negative advantage."),
    _measure("clip_ratio/low_min", "share", "A-304", _SAMPLES, "The smallest share below it of one sample."),
    _measure("clip_ratio/high_mean", "share", "A-305", _RATIOS, "Above it, with a positive advantage."),
    _measure("clip_ratio/high_max", "share", "A-306", _SAMPLES, "The largest share above it of one sample."),
    _measure("cispo_clip_ratio", "share", "G-261", _RATIOS, "Cut as a weight, with a positive advantage."),
    _measure("vespo/phi_seq_mean", "weight", "G-262", _SAMPLES, "Of the whole sample: 1 is that of an unmoved policy."),
    _measure("loss", "loss", "agrpo", _UPDATES, "The loss that the step went down on."),
    _measure("grad_norm", "norm", "agrpo", _UPDATES, "Of the gradient, before clipping."),
    _measure("learning_rate", "rate", "agrpo", "steps", "Of the step."),
    _measure("rollout/duration_s", "s", "A-307", "rollouts, failed ones too", "From its first request to its end."),
    _measure("rollout/generated_tokens_per_s", "tokens/s", "A-308", _STEP_TIME, "Generated tokens of consumed groups."),
    _measure("rollout/concurrency", "rollouts", "A-309", _GROUPS, "In flight when the group began, its own included."),
    _measure("rollout/concurrency_cap", "rollouts", "A-310", _GROUPS, "Most that could be in flight then."),
    _measure("rollout/turns_mean", "turns", "A-311", _ANSWERED, "Sampling requests of a rollout."),
    _measure("rollout/turns_max", "turns", "A-311", _ANSWERED, "The most."),
    _measure(
        "rollout/samples_per_rollout",
        "samples",
        "A-312",
        _ANSWERED,
        "Training sequences with a trained token; 1: no fork.",
    ),
    _measure("rollout/fork_frac", "share", "A-313", _TRANSITIONS, "The next turn began a sequence of its own."),
    _measure(
        "rollout/drift_tokens_mean", "tokens", "A-314", _TRANSITIONS, "Kept, and rendered anew since it forked; else 0."
    ),
    _measure("rollout/drift_tokens_max", "tokens", "A-314", _TRANSITIONS, "The most."),
    _measure(
        "rollout/failed_count",
        "rollouts",
        "agrpo",
        "rollouts",
        "Without an answer, of engine or environment: see `rollouts.stop_reason`.",
    ),
    _measure(
        "rollout/unasked_count",
        "groups",
        "agrpo",
        _GROUPS,
        "Without rollouts: the prompt was left out by `filter_prompt`, or refused.",
    ),
    _measure(
        "rollout/score_queue_size", "groups", "A-315", _GROUPS, "Others that waited for scores when it was taken."
    ),
    _measure("rollout/queue_size", "samples", "A-316", "steps", "Scored, and waiting when the step began to choose."),
    _measure("rollout/score_s", "s", "A-317", _GROUPS, "That all rewards of the group together took."),
    _measure("rollout/score_wait_s", "s", "A-317", _GROUPS, "From the group's end to its scoring."),
    _measure("rollout/score_block_s", "s", "A-318", _WAITED, "Could not begin: `async.scoring_queue` was full."),
    _measure("rollout/backpressure_s", "s", "A-319", _WAITED, "Could not begin: run-ahead was used up."),
    _measure("rollout/load_wait_s", "s", "agrpo", _WAITED, "Could not begin: the live cap was reached."),
    _measure(
        "rollout/ceiling_wait_s", "s", "agrpo", _WAITED, "Could not begin: `async.max_concurrent_rollouts` was reached."
    ),
    _measure("rollout/backpressure_frac", "share", "agrpo", _GENERATORS_TIME, "No group could begin: run-ahead."),
    _measure("rollout/load_wait_frac", "share", "agrpo", _GENERATORS_TIME, "The same: the live cap."),
    _measure("rollout/ceiling_wait_frac", "share", "agrpo", _GENERATORS_TIME, "The same: the hard ceiling."),
    _measure("rollout/score_block_frac", "share", "agrpo", _GENERATORS_TIME, "The same: the scoring queue."),
    _measure(
        "rollout/vllm_retry_count", "requests", "A-320", "requests", "Asked again: no answer, or none that is whole."
    ),
    _measure(
        "rollout/vllm_kv_cache_usage_frac", "share", "A-321", _POLLS, "KV cache in use of the server that is fullest."
    ),
    _measure("rollout/vllm_running_requests", "requests", "A-322", _POLLS, "Being decoded, over all servers."),
    _measure("rollout/vllm_queued_requests", "requests", "A-323", _POLLS, "Accepted, not scheduled, over all servers."),
    _measure("rollout/vllm_preemption_count", "requests", "A-324", "requests", "Preempted; by each weight sync too."),
    _measure("tools/latency_s", "s", "A-325", _RAN, "From the call's turn to its result or its failure."),
    _measure("tools/{tool}/latency_s", "s", "A-325", "calls of the tool that ran", "The same of one tool."),
    _measure("tools/{tool}/call_count", "calls", "A-326", "calls of the tool", "Calls of one tool."),
    _measure("tools/{tool}/failure_count", "calls", "A-326", "calls of the tool", "Those that gave no result."),
    _measure("tools/unknown_name_count", "calls", "A-327", _CALLS, "Of a tool that does not exist."),
    _measure("tools/parallel_calls_mean", "calls", "A-328", "turns that call tools", "Calls of a turn."),
    _measure(
        "tools/loop_exhausted_frac",
        "share",
        "A-329",
        "rollouts, failed ones too",
        "Cut at `max_tool_calling_iterations` while still calling.",
    ),
    _measure(
        "env/reset_s",
        "s",
        "A-330",
        "rollouts in an environment",
        "In `reset`, and in making an instance where it was made.",
    ),
    _measure("env/reward_s", "s", "A-331", "rollouts whose environment was asked for it", "In `get_reward`."),
    _measure("sample/forwarded_tokens_mean", "tokens", "A-332", _SAMPLES, "Tokens of a sample."),
    _measure("sample/forwarded_tokens_max", "tokens", "A-332", _SAMPLES, "The most."),
    _measure("sample/trained_tokens_mean", "tokens", "A-333", _SAMPLES, "Tokens of a sample that carry loss."),
    _measure("sample/time_in_queue_s", "s", "A-334", _SAMPLES, "From the group's scores to the step's plan."),
    _measure("sample/staleness_mean", "weight updates", "A-335", _SAMPLES, "Between sampling and training."),
    _measure("sample/staleness_max", "weight updates", "A-335", _SAMPLES, "The most."),
    _measure("sample/dropped_stale_count", "samples", "A-336", "samples", "Dropped: sampled too many updates ago."),
    _measure("batch/forwarded_tokens_per_step", "tokens", "A-337", "steps", "Tokens of the step's rows."),
    _measure("batch/trained_tokens_per_step", "tokens", "A-337", "steps", "Tokens that carry loss."),
    _measure("batch/samples_per_step", "samples", "A-338", "steps", "Training sequences."),
    _measure("batch/groups_per_step", "groups", "A-338", "steps", "Groups that were trained."),
    _measure(
        "batch/microbatches_per_step", "micro-batches", "A-339", "steps", "Forward and backward passes of a process."
    ),
    _measure("batch/masked_token_frac", "share", "A-340", "forwarded tokens", "Not trained: prompts, tool results."),
    _measure("batch/samples_per_row", "samples", "A-341", "rows", "Training sequences of a row."),
    _measure("batch/row_tokens_mean", "tokens", "A-342", "rows", "Forwarded tokens of a row."),
    _measure("batch/row_tokens_max", "tokens", "A-342", "rows", "The most."),
    _measure("batch/row_fill_frac", "share", "A-343", "rows", "Of `step.micro_tokens`."),
    _measure(
        "batch/row_imbalance", "ratio", "A-344", _UPDATES, "Attention cost of the costliest row over the mean row's."
    ),
    _measure(
        "batch/packing_ratio",
        "ratio",
        "A-345",
        "forwarded tokens",
        "Tokens of the samples per token; 1: none is shared.",
    ),
    _measure(
        "batch/pad_frac", "share", "A-346", "forwarded tokens", "In rows of no sample, which make processes even."
    ),
    _measure(
        "batch/dropped_oversize_count", "samples", "A-347", "samples", "Dropped: longer than `step.micro_tokens`."
    ),
    _measure(
        "batch/masked_truncated_count",
        "samples",
        "agrpo",
        "samples",
        "Left out: their rollout was cut (`step.mask_truncated`).",
    ),
    _measure(
        "filters/{name}/left_out_count", "groups", "agrpo", "groups", "Left out by that filter, before any other."
    ),
    _measure("perf/step_s", "s", "A-348", "steps", "Wall time since the step before was done."),
    _measure("perf/fwd_bwd_s", "s", "A-349", _UPDATES, "Forward and backward passes."),
    _measure("perf/fwd_s", "s", "A-349", _UPDATES, "Forward passes."),
    _measure("perf/optimizer_s", "s", "A-350", _UPDATES, "Clipping the gradient, and the optimizer."),
    _measure("perf/rollout_wait_s", "s", "A-351", "steps", "The learner waits for scored groups."),
    _measure("perf/weight_sync_s", "s", "A-352", _SYNCS, "Publishing weights, counted in the step after."),
    _measure("perf/weight_sync_pause_s", "s", "A-353", _PARTED, "Pausing and resuming servers: a part of it."),
    _measure("perf/weight_sync_barrier_s", "s", "A-353", _PARTED, "Waiting for the learner's other processes."),
    _measure("perf/weight_sync_transfer_s", "s", "A-353", _SYNCS, "Writing and sending them: a part of it."),
    _measure(
        "perf/fwd_bwd_forwarded_tokens_per_s",
        "tokens/s",
        "A-354",
        "seconds of the passes",
        "Tokens of the steps' rows.",
    ),
    _measure("perf/wall_clock_forwarded_tokens_per_s", "tokens/s", "A-354", _STEP_TIME, "Tokens of the steps' rows."),
    _measure("perf/wall_clock_trained_tokens_per_s", "tokens/s", "A-355", _STEP_TIME, "Tokens that carry loss."),
    _measure(
        "perf/fwd_bwd_mfu",
        "share",
        "A-356",
        "what the training devices can do in the passes",
        "FLOPs that the model needs for the steps' rows.",
    ),
    _measure(
        "perf/wall_clock_mfu",
        "share",
        "A-356",
        "what the training devices can do in the steps",
        "FLOPs that the model needs for the steps' rows.",
    ),
)
"""In the order of the specification."""

_EXACT = {measure.name: measure for measure in MEASURES}
_PATTERNS = [
    (re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(measure.name))), measure)
    for measure in MEASURES
    if "{" in measure.name
]
