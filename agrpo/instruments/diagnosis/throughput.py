"""Throughput: who waits for whom (A-110 to A-116).

Two waits are compared with the length of a step: training's, for scored groups, and generation's, for leave to run
further ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from agrpo.instruments.diagnosis.evidence import Evidence, percent, seconds
from agrpo.instruments.diagnosis.finding import NOTHING, Finding, Severity
from agrpo.instruments.diagnosis.flow import HIGH, Flow, flow_of

NEAR_ZERO = 0.05
"""A wait of at most this share of a step is none. Between the two nothing is said."""
CUT = 0.01
"""From this share of cut completions on, the length limit binds."""
AT_LIMIT = 0.95
"""Rollouts in flight are at a limit from this share of it on: groups start and end whole."""
LOW_KV_CACHE = 0.6
"""Below it, the server has room: the live cap would still grow (A-103)."""
NEAR_EMPTY = 0.5
"""Of the samples a step takes; with fewer in the queue most of a step is yet to come."""
FULL_QUEUE = 0.5
"""Of `max_staleness` steps of samples; the rest of the allowance is in flight."""


def findings(evidence: Evidence) -> Iterator[Finding]:
    """One reading at most: the cause that explains the waits."""
    flow = flow_of(evidence)
    if flow is None or (flow.hardly_trained and flow.set_aside is None):
        return
    if evidence.setting("async.max_staleness") == 0:
        yield from _lockstep(evidence, flow)
        return
    for rule in (
        _too_tight,
        _server_load,
        _hard_ceiling,
        _scoring_bound,
        _generation_bound,
        _trainer_bound,
        _run_ahead,
        _balanced,
    ):
        finding = rule(evidence, flow)
        if finding is not None:
            yield finding
            return


def _too_tight(evidence: Evidence, flow: Flow) -> Finding | None:
    if flow.wait < HIGH or (flow.pressure or 0.0) < HIGH or not flow.run_ahead_binds:
        return None
    if _scoring_seconds(evidence) >= max(evidence.mean("rollout/duration_s") or 0.0, flow.step_seconds):
        return None
    return Finding(
        rule="A-115",
        severity=flow.severity,
        title="async.max_staleness is too tight",
        reading=f"{_training_waits(flow)}, and yet generation waits {seconds(flow.pressure_seconds or 0.0)} of it for leave "
        f"to start: rollouts in flight use up the allowance.{_meanwhile(evidence, flow)}",
        change=f"Raise {evidence.named('async.max_staleness')}. If no more tokens per second come of it, the engine is the "
        "limit.",
    )


def _server_load(evidence: Evidence, flow: Flow) -> Finding | None:
    limit = evidence.setting("async.max_concurrent_rollouts")
    if flow.concurrency is None or flow.cap is None or limit is None:
        return None
    if (
        flow.cap >= limit
        or flow.concurrency < AT_LIMIT * flow.cap
        or (flow.pressure_seconds or 0.0) > flow.load_seconds
    ):
        return None
    return Finding(
        rule="A-111",
        severity=Severity.NOTE,
        title="The server's load is the limit",
        reading=f"{flow.concurrency:.0f} rollouts are in flight where the live cap is {flow.cap:.0f} and "
        f"async.max_concurrent_rollouts is {limit}.{_held(flow.load_seconds)}{_servers(evidence)} {_training_waits(flow)}.",
        change=NOTHING
        if flow.wait < HIGH
        else f"Give the server more memory or another replica{_less_to_do(evidence)}.",
    )


def _hard_ceiling(evidence: Evidence, flow: Flow) -> Finding | None:
    limit = evidence.setting("async.max_concurrent_rollouts")
    if (
        limit is None
        or flow.concurrency is None
        or flow.wait < HIGH
        or flow.concurrency < AT_LIMIT * _fitting(evidence, limit)
    ):
        return None
    used = evidence.mean("rollout/vllm_kv_cache_usage_frac")
    if used is not None and used >= LOW_KV_CACHE:
        return None
    room = "" if used is None else f" The server's KV cache is {percent(used)} full."
    return Finding(
        rule="A-112",
        severity=Severity.WARNING,
        title="async.max_concurrent_rollouts holds generation back",
        reading=f"{_training_waits(flow)}, while {flow.concurrency:.0f} rollouts are in flight where "
        f"async.max_concurrent_rollouts is {limit}.{_held(flow.ceiling_seconds)}{room}{_little(flow)}",
        change=f"Raise {evidence.named('async.max_concurrent_rollouts')}{_batch_too(evidence)}, if tools and environments "
        "can serve more at once.",
    )


def _scoring_bound(evidence: Evidence, flow: Flow) -> Finding | None:
    scoring, taken = _scoring_seconds(evidence), evidence.mean("rollout/duration_s")
    if taken is None or flow.wait < HIGH:
        return None
    blocked = flow.scoring_seconds >= HIGH * flow.step_seconds
    if not blocked and scoring <= max(taken, HIGH * flow.step_seconds):
        return None
    queue = f" Generation waits {seconds(flow.scoring_seconds)} of it: {evidence.named('async.scoring_queue')} is full."
    return Finding(
        rule="agrpo/scoring-bound",
        severity=flow.severity,
        title="Scoring-bound: training waits for rewards",
        reading=f"{_training_waits(flow)}.{queue if blocked else ''}{_meanwhile(evidence, flow)}",
        change=f"Make the rewards faster ([[rewards]]): a group takes {seconds(taken)} to generate and {seconds(scoring)} to score. "
        "agrpo questions RUN reward_sources shows the seconds of each.",
    )


def _generation_bound(evidence: Evidence, flow: Flow) -> Finding | None:
    if flow.wait < HIGH or flow.queued is None or not flow.samples_per_step:
        return None
    if flow.queued > NEAR_EMPTY * flow.samples_per_step:
        return None
    return Finding(
        rule="A-113",
        severity=flow.severity,
        title="Generation-bound: training waits for rollouts",
        reading=f"{_training_waits(flow)}; {_queued(flow)}.{_meanwhile(evidence, flow)}",
        change=_more_that_teach(evidence) if flow.replaces else _faster_generation(evidence),
    )


def _trainer_bound(evidence: Evidence, flow: Flow) -> Finding | None:
    limit = evidence.setting("async.max_staleness")
    if flow.pressure is None or flow.pressure < HIGH or flow.queued is None or not flow.samples_per_step or not limit:
        return None
    if flow.queued < FULL_QUEUE * limit * flow.samples_per_step:
        return None
    stale = evidence.mean("sample/staleness_mean")
    late = "" if stale is None else f" Samples are {stale:.1f} updates old when they are trained; the limit is {limit}."
    return Finding(
        rule="A-114",
        severity=Severity.NOTE,
        title="Trainer-bound: rollouts wait for training",
        reading=f"{_generation_waits(flow)}; {_queued(flow)}.{late}",
        change=f"Nothing is lost. A lower {evidence.named('async.max_staleness')} trains fresher rollouts at the same speed; "
        f"faster steps need a faster learner, or fewer micro-batches: {evidence.named('step.micro_tokens')}.",
    )


def _run_ahead(evidence: Evidence, flow: Flow) -> Finding | None:
    if flow.pressure is None or flow.pressure <= NEAR_ZERO or flow.wait >= HIGH:
        return None
    return Finding(
        rule="A-110",
        severity=Severity.NOTE,
        title="The staleness limit paces generation",
        reading=f"{_generation_waits(flow)}. {_training_waits(flow)}.",
        change=f"Nothing, where generation is the faster side. To let it run further ahead, raise "
        f"{evidence.named('async.max_staleness')}.",
    )


def _balanced(evidence: Evidence, flow: Flow) -> Finding | None:
    if flow.pressure is None or flow.pressure > NEAR_ZERO or flow.wait > NEAR_ZERO:
        return None
    return Finding(
        rule="A-116",
        severity=Severity.GOOD,
        title="Balanced: neither side waits",
        reading=f"Training waits {flow.wait_seconds:.2f} s and generation {flow.pressure_seconds:.2f} s of every "
        f"{flow.step_seconds:.1f} s step.",
        change=NOTHING,
    )


def _lockstep(evidence: Evidence, flow: Flow) -> Iterator[Finding]:
    if flow.wait >= HIGH:
        yield Finding(
            rule="agrpo/lockstep",
            severity=Severity.NOTE,
            title="Lockstep: the two sides take turns",
            reading=f"{_training_waits(flow)}. With async.max_staleness = 0 no group begins before the step it waits for.",
            change="Nothing, where a run that repeats bit for bit is wanted. To let both sides work at once, set "
            "async.max_staleness to 1 or more.",
        )


def _training_waits(flow: Flow) -> str:
    return f"Training waits {flow.wait_seconds:.1f} s of every {flow.step_seconds:.1f} s step for scored groups"


def _generation_waits(flow: Flow) -> str:
    return (
        f"Generation waits {seconds(flow.pressure_seconds or 0.0)} of every {flow.step_seconds:.1f} s step for leave to run "
        "further ahead"
    )


def _held(waited: float) -> str:
    """How long of a step a limit on rollouts holds generation; nothing where it does not."""
    return f" Generation waits {seconds(waited)} of every step for a place." if waited else ""


def _servers(evidence: Evidence) -> str:
    used, queued = (evidence.mean(f"rollout/vllm_{name}") for name in ("kv_cache_usage_frac", "queued_requests"))
    if used is None or queued is None:
        return ""
    return f" The server's KV cache is {percent(used)} full, and {queued:.0f} requests wait in it."


def _queued(flow: Flow) -> str:
    return f"{flow.queued:.0f} scored samples are queued when a step begins, which takes {flow.samples_per_step:.0f}"


def _meanwhile(evidence: Evidence, flow: Flow) -> str:
    """What generation and scoring do while training waits."""
    rate, unscored = evidence.mean("rollout/generated_tokens_per_s"), evidence.mean("rollout/score_queue_size")
    parts = [
        *([] if rate is None else [f"the engine generates {rate:,.0f} tokens/s"]),
        *([] if flow.concurrency is None else [f"{flow.concurrency:.0f} rollouts are in flight"]),
        *([] if unscored is None else [f"{unscored:.0f} finished groups wait for scores"]),
    ]
    told = f" Meanwhile {', '.join(parts)}." if parts else ""
    return told + _way(evidence) + _little(flow)


def _little(flow: Flow) -> str:
    """That equal rewards, and not speed, decide how much is trained."""
    if flow.replaces:
        return (
            f" Steps are long: {percent(flow.set_aside or 0.0)} of the generated groups were set aside (equal rewards)."
        )
    if flow.little_trained and flow.set_aside is None:
        return f" Steps are short: {percent(flow.trained or 0.0)} of the samples are trained."
    return ""


def _way(evidence: Evidence) -> str:
    """How long the parts of a group's way to training take."""
    names = ("rollout/duration_s", "rollout/score_wait_s", "rollout/score_s")
    taken, waited, scored = (evidence.mean(name) for name in names)
    if taken is None or waited is None or scored is None:
        return ""
    return f" A rollout takes {seconds(taken)}, its group then waits {seconds(waited)} for scores, which take {seconds(scored)}."


def _scoring_seconds(evidence: Evidence) -> float:
    """From a group's end to its scores."""
    return math.fsum(evidence.mean(name) or 0.0 for name in ("rollout/score_wait_s", "rollout/score_s"))


def _more_that_teach(evidence: Evidence) -> str:
    return (
        "Ask prompts that are neither too easy nor too hard ([prompts]): a faster engine would only replace groups faster. "
        'With step.zero_variance = "drop" steps are short instead of long.'
    )


def _faster_generation(evidence: Evidence) -> str:
    """With the settings that bind, and no others."""
    knobs = [evidence.named(key) for key in ("engine.threads",) if evidence.has(key)]
    batch, in_flight = evidence.setting("engine.batch_rollouts"), evidence.mean("rollout/concurrency")
    if batch is not None and in_flight is not None and in_flight >= AT_LIMIT * _fitting(evidence, batch):
        knobs.append(evidence.named("engine.batch_rollouts"))
    more = f' ({", ".join(knobs)}; or a GPU, with engine.name = "vllm")' if knobs else ""
    return f"Give generation more of the machine{more}{_less_to_do(evidence)}."


def _less_to_do(evidence: Evidence) -> str:
    """Shorter completions, where the limit is what ends them; nothing where it is not, or nobody measured it."""
    cut = evidence.mean("completions/clipped_ratio")
    if cut is None or cut < CUT:
        return ""
    return f", or less to do: {evidence.named('engine.max_completion_length')}, which cuts {percent(cut)} of the completions"


def _fitting(evidence: Evidence, limit: int) -> int:
    """The most rollouts of whole groups that fit under a limit."""
    rollouts = evidence.setting("engine.num_generations") or 1
    return max(limit // rollouts, 1) * rollouts


def _batch_too(evidence: Evidence) -> str:
    batch, limit = evidence.setting("engine.batch_rollouts"), evidence.setting("async.max_concurrent_rollouts")
    return f", and engine.batch_rollouts (now {batch}) with it" if batch is not None and batch <= limit else ""
