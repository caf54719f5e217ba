"""The policy and its samples: agrpo's own rules on what training gets to see, and what it does to the weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from statistics import fmean

from agrpo.instruments.diagnosis.evidence import Evidence, percent
from agrpo.instruments.diagnosis.finding import Finding, Severity
from agrpo.instruments.diagnosis.reward_range import LEAST_CHANGE, reward_range

LEAST_FALL = 0.1
"""Of the reward's range: the smallest fall of the mean reward that is a warning by itself."""
MISMATCH_NATS = 0.02
"""Mean difference of log-probs under the same weights. float32 gives 1e-5, one bfloat16 side about 1e-2."""
MISMATCH_RATIO = 0.01
"""Distance of the mean importance ratio from 1 under the same weights."""
MIXED_NATS = 0.1
"""As `MISMATCH_NATS` in mixed precision, where the learner rounds otherwise than an engine in bfloat16 (docs/models.md)."""
MIXED_RATIO = math.expm1(MIXED_NATS)
"""What so many nats on every token make of the ratio."""
CUT = 0.1
"""From this share of cut completions on there is a note."""
OFTEN_CUT = 0.25
"""From this share on there is a warning."""
STALE = 0.05
"""From this share of samples dropped as stale on there is a note."""
OFTEN_STALE = 0.2
"""From this share on there is a warning."""
MASKED = 0.02
"""From this share of trained tokens masked on there is a note."""
OFTEN_MASKED = 0.1
"""From this share on there is a warning."""
EMPTY = 0.05
"""From this share of rollouts without a trained token on there is a warning."""
SPIKE = 10.0
"""A gradient norm of so many times the median is a spike. Those of a healthy run stay within a factor of 5."""
LEAST_NORM = 0.01
"""Of `optimizer.max_grad_norm`: a median below is taken for this much, since a step that hardly moves says nothing."""
FIRST_STEPS = 5
"""Steps at a run's start whose cut completions are remembered."""
CUT_AT_FIRST = 0.15
"""From this share of theirs on: five steps are noisier than a window."""
FAILS = 0.01
"""From this share of rollouts on that failed, or that a reward failed for, there is a note."""
OFTEN_FAILS = 0.05
"""From this share on there is a warning."""


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Each rule speaks for itself."""
    yield from _rewards_fail(evidence)
    for rule in (_reward_falls, _engine_mismatch, _rollouts_fail, _empty_rollouts, _cut, _stale, _masked, _spikes):
        finding = rule(evidence)
        if finding is not None:
            yield finding


def _rewards_fail(evidence: Evidence) -> Iterator[Finding]:
    """One finding per reward that fails."""
    names = {
        name for point in evidence.window for name in point.metrics if re.fullmatch(r"rewards/.+/failed_frac", name)
    }
    for name in sorted(names):
        share, reward = evidence.mean(name), name.removeprefix("rewards/").removesuffix("/failed_frac")
        if share is not None and share >= FAILS:
            yield Finding(
                rule="agrpo/reward-fails",
                severity=Severity.WARNING if share >= OFTEN_FAILS else Severity.NOTE,
                title=f"The reward {reward} fails",
                reading=f"For {percent(share)} of the answered rollouts it raised, timed out or died, and gave no value: they are "
                "judged without it, or not at all.",
                change="Mend what fails: agrpo questions RUN failed_rewards shows the errors. One that is only slow may have a "
                "longer timeout_seconds ([[rewards]]).",
            )


def _reward_falls(evidence: Evidence) -> Finding | None:
    """Both windows have to be full: this alarm rests on one measure alone."""
    reward = evidence.trend("reward", LEAST_FALL * reward_range(evidence).width)
    if reward is None or not reward.falling or len(evidence.both) < 2 * evidence.size:
        return None
    return Finding(
        rule="agrpo/reward-falls",
        severity=Severity.WARNING,
        title="The reward falls",
        reading=f"The mean reward fell from {reward.first:.2f} to {reward.last:.2f} over the last {len(evidence.both)} steps.",
        change=f"Lower {evidence.named('optimizer.learning_rate')} or {evidence.named('async.max_staleness')}; if prompts come "
        "in an order of difficulty, shuffle them (prompts.shuffle).",
    )


def _engine_mismatch(evidence: Evidence) -> Finding | None:
    """Read from the last steps whose samples were all of the current version, which an asynchronous run has at its start."""
    fresh = [point for point in evidence.history if point.metrics.get("sample/staleness_max") == 0.0][-evidence.size :]
    differences = evidence.values("sampling/sampling_logp_difference/mean", fresh)
    ratios = evidence.values("sampling/importance_sampling_ratio/mean", fresh)
    if not differences or not ratios:
        return None
    nats, ratio = fmean(differences), fmean(ratios)
    mixed = evidence.setting("model.mixed_precision")
    most_nats, most_ratio = (MIXED_NATS, MIXED_RATIO) if mixed else (MISMATCH_NATS, MISMATCH_RATIO)
    if nats < most_nats and abs(ratio - 1) < most_ratio:
        return None
    alike = f'model.dtype (now {evidence.setting("model.dtype")}) = "float32" is exact to 1e-5 nats'
    if mixed:
        alike = f'model.mixed_precision = "{mixed}" explains less than {MIXED_NATS:g} nats, and without it both are exact to 1e-5'
    return Finding(
        rule="agrpo/engine-mismatch",
        severity=Severity.WARNING,
        title="Engine and learner disagree about the same weights",
        reading=f"In {len(fresh)} steps that trained on samples of their own version (the last: step {fresh[-1].step}), "
        f"log-probs differ by {nats:.3f} nats per token and the mean importance ratio is {ratio:.3f}; it should be 1.",
        change=f"Let both compute alike: {alike}; then look for a difference in attention or templates.",
    )


def _rollouts_fail(evidence: Evidence) -> Finding | None:
    failed, samples = evidence.total("rollout/failed_count"), evidence.samples_per_step
    if failed is None or not samples:
        return None
    share = failed / (samples * len(evidence.window))
    if share < FAILS:
        return None
    return Finding(
        rule="agrpo/rollouts-fail",
        severity=Severity.WARNING if share >= OFTEN_FAILS else Severity.NOTE,
        title="Rollouts fail",
        reading=f"{failed:.0f} rollouts, {percent(share)} of those of the last {len(evidence.window)} steps, came back without an "
        "answer.",
        change='See why: agrpo sql RUN "SELECT stop_reason, error, count(*) FROM rollouts GROUP BY ALL". For environment_error mend '
        "the environment ([environments]); for timeout raise "
        f"{evidence.named('engine.request_timeout_seconds')}; for engine_error look at the engine.",
    )


def _empty_rollouts(evidence: Evidence) -> Finding | None:
    samples = evidence.mean("rollout/samples_per_rollout")
    if samples is None or samples > 1 - EMPTY:
        return None
    return Finding(
        rule="agrpo/empty-rollouts",
        severity=Severity.WARNING,
        title="Rollouts give nothing to train",
        reading=f"A rollout that was answered gives {samples:.2f} samples on average: at least {percent(1 - samples)} give none.",
        change='Look for answers of no token: agrpo sql RUN "SELECT * FROM rollouts WHERE num_completion_tokens = 0".',
    )


def _cut(evidence: Evidence) -> Finding | None:
    cut = evidence.mean("completions/clipped_ratio")
    if cut is None or cut < CUT:
        return None if cut is None else _cut_at_first(evidence, cut)
    length = evidence.mean("completions/mean_length")
    told = "" if length is None else f" A completion has {length:.0f} tokens on average."
    return Finding(
        rule="agrpo/cut-completions",
        severity=Severity.WARNING if cut >= OFTEN_CUT else Severity.NOTE,
        title="Completions are cut before they end",
        reading=f"{percent(cut)} of the completions do not end by themselves.{told}",
        change=f"Raise {evidence.named('engine.max_completion_length')}, or reward shorter answers ([[rewards]]).",
    )


def _cut_at_first(evidence: Evidence, cut: float) -> Finding | None:
    """A policy that was cut and learned to be short instead of right."""
    start = evidence.history[:FIRST_STEPS]
    first, reward = evidence.values("completions/clipped_ratio", start), evidence.values("reward", start)
    now, least = evidence.mean("reward"), LEAST_CHANGE * reward_range(evidence).width
    if not first or not reward or now is None or fmean(first) < CUT_AT_FIRST or cut > fmean(first) / 2:
        return None
    if now >= fmean(reward) + least:
        return None
    length = evidence.mean("completions/mean_length")
    told = "" if length is None else f", {length:.1f} tokens on average"
    return Finding(
        rule="agrpo/cut-completions",
        severity=Severity.WARNING if fmean(first) >= OFTEN_CUT else Severity.NOTE,
        title="The length limit taught short answers, not better ones",
        reading=f"In the first {len(start)} steps {percent(fmean(first))} of the completions were cut by the length limit; now "
        f"{percent(cut)} are, for answers grew short{told}. The mean reward went from {fmean(reward):.2f} to {now:.2f}.",
        change=f"Raise {evidence.named('engine.max_completion_length')} and start again: what was unlearned is not sampled any "
        "more.",
    )


def _stale(evidence: Evidence) -> Finding | None:
    dropped = evidence.total("sample/dropped_stale_count")
    samples = evidence.samples_per_step
    if dropped is None or not samples:
        return None
    share = dropped / (samples * len(evidence.window))
    if share < STALE:
        return None
    return Finding(
        rule="agrpo/stale-drops",
        severity=Severity.WARNING if share >= OFTEN_STALE else Severity.NOTE,
        title="Samples are thrown away as too old",
        reading=f"{dropped:.0f} samples, {percent(share)} of what the last {len(evidence.window)} steps took, were more than "
        f"{evidence.setting('async.max_staleness')} weight updates old.",
        change=f"Raise {evidence.named('async.max_staleness')}, publish less often ({evidence.named('async.weight_sync_steps')}), or "
        f"let fewer rollouts run at once ({evidence.named('async.max_concurrent_rollouts')}).",
    )


def _masked(evidence: Evidence) -> Finding | None:
    masked = evidence.mean("sampling/masked_mean")
    if masked is None or masked < MASKED:
        return None
    bounds = [evidence.named(key) for key in ("loss.importance_min", "loss.importance_max") if evidence.has(key)]
    widen = f", or widen the bounds: {', '.join(bounds)}" if bounds else ""
    return Finding(
        rule="agrpo/masked-tokens",
        severity=Severity.WARNING if masked >= OFTEN_MASKED else Severity.NOTE,
        title="Tokens leave the loss: the policy has moved on since they were sampled",
        reading=f"{percent(masked)} of the trained tokens are masked: their importance ratio is out of bounds.",
        change=f"Lower {evidence.named('async.max_staleness')} or {evidence.named('optimizer.learning_rate')}{widen}.",
    )


def _spikes(evidence: Evidence) -> Finding | None:
    measured = evidence.median("grad_norm")
    if measured is None:
        return None
    usual = max(measured, LEAST_NORM * (evidence.setting("optimizer.max_grad_norm") or 1.0))
    spikes = [point for point in evidence.window if point.metrics.get("grad_norm", -math.inf) >= SPIKE * usual]
    if not spikes:
        return None
    norms = evidence.values("grad_norm", spikes)
    steps = ", ".join(str(point.step) for point in spikes[-3:])
    above = (
        f", {max(norms) / usual:.0f} times its median of {usual:.2f}"
        if usual == measured
        else "; in most steps it is near 0"
    )
    return Finding(
        rule="agrpo/gradient-spikes",
        severity=Severity.NOTE,
        title="The gradient spikes",
        reading=f"Its norm reached {max(norms):.2f}{above}. Steps: {steps}.",
        change=f"Read the rollouts of those steps. If it happens again, lower {evidence.named('optimizer.max_grad_norm')} or "
        f"{evidence.named('optimizer.learning_rate')}.",
    )
