"""Throughput: who waits for whom (A-110 to A-116).

Two waits are compared with the length of a step: training's, for scored groups, and generation's, for leave to run
further ahead. The first step of an attempt is left out: it holds the start of the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from agrpo.instruments.diagnosis.evidence import Evidence, percent, seconds
from agrpo.instruments.diagnosis.finding import NOTHING, Finding, Severity
from agrpo.instruments.history import StepPoint

HIGH = 0.2
"""A wait of this share of a step and more is high."""
NEAR_ZERO = 0.05
"""A wait of at most this share of a step is none. Between the two nothing is said."""
MOSTLY_WAITING = 0.5
"""From this share on, training's wait is a warning."""
LITTLE = 0.5
"""Below this share of trained samples steps are short because there is little to train, not because training is fast."""
HARDLY = 0.25
"""Below this share there is no throughput to speak of: the groups are the cause, not who waits for whom."""
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


@dataclass(frozen=True, kw_only=True)
class _Flow:
    """The window's flow of rollouts, as far as it was measured."""

    step_seconds: float
    wait_seconds: float
    """Training's, per step."""
    pressure_seconds: float | None
    """Generation's: mean wait of the groups that waited, per step; 0 in a step where none did."""
    load_seconds: float
    ceiling_seconds: float
    scoring_seconds: float
    """As `pressure_seconds`, of the load cap, the hard ceiling and the scoring queue."""
    concurrency: float | None
    cap: float | None
    queued: float | None
    """Scored samples where training takes them."""
    samples_per_step: float | None
    """Consumed, trained and dropped."""
    trained: float | None
    """The share of those that is trained."""
    set_aside: float | None
    """The share of the consumed groups whose rollouts all earn the same, where steps are refilled."""

    @property
    def wait(self) -> float:
        return self.wait_seconds / self.step_seconds

    @property
    def severity(self) -> Severity:
        """Of a cause that keeps training waiting. Where little is trained, training has little to do but wait."""
        idle = self.little_trained or self.replaces
        return Severity.WARNING if self.wait >= MOSTLY_WAITING and not idle else Severity.NOTE

    @property
    def replaces(self) -> bool:
        """Whether steps are long because most groups are replaced."""
        return self.set_aside is not None and self.set_aside >= LITTLE

    @property
    def little_trained(self) -> bool:
        return self.trained is not None and self.trained < LITTLE

    @property
    def hardly_trained(self) -> bool:
        return self.trained is not None and self.trained < HARDLY

    @property
    def pressure(self) -> float | None:
        return None if self.pressure_seconds is None else self.pressure_seconds / self.step_seconds


def findings(evidence: Evidence) -> Iterator[Finding]:
    """One reading at most: the cause that explains the waits."""
    flow = _flow(evidence)
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


def _too_tight(evidence: Evidence, flow: _Flow) -> Finding | None:
    if flow.wait < HIGH or (flow.pressure or 0.0) < HIGH:
        return None
    if _scoring_seconds(evidence) >= max(evidence.mean("rollout/duration_s") or 0.0, flow.step_seconds):
        return None
    return Finding(
        rule="A-115",
        severity=flow.severity,
        title="async.max_staleness is too tight",
        reading=f"{_training_waits(flow)}, and yet groups wait {flow.pressure_seconds:.2f} s for leave to start: "
        f"rollouts in flight use up the allowance.{_meanwhile(evidence, flow)}",
        change=f"Raise {evidence.named('async.max_staleness')}. If no more tokens per second come of it, the engine is the "
        "limit.",
    )


def _server_load(evidence: Evidence, flow: _Flow) -> Finding | None:
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
        change=f"Give the server more memory or another replica{_less_to_do(evidence)}.",
    )


def _hard_ceiling(evidence: Evidence, flow: _Flow) -> Finding | None:
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


def _scoring_bound(evidence: Evidence, flow: _Flow) -> Finding | None:
    scoring, taken = _scoring_seconds(evidence), evidence.mean("rollout/duration_s")
    if taken is None or flow.wait < HIGH:
        return None
    blocked = flow.scoring_seconds >= HIGH * flow.step_seconds
    if not blocked and scoring <= max(taken, HIGH * flow.step_seconds):
        return None
    queue = f" Groups wait {seconds(flow.scoring_seconds)} to begin: {evidence.named('async.scoring_queue')} is full."
    return Finding(
        rule="agrpo/scoring-bound",
        severity=flow.severity,
        title="Scoring-bound: training waits for rewards",
        reading=f"{_training_waits(flow)}.{queue if blocked else ''}{_meanwhile(evidence, flow)}",
        change=f"Make the rewards faster ([[rewards]]): a group takes {seconds(taken)} to generate and {seconds(scoring)} to score. "
        "agrpo questions RUN reward_sources shows the seconds of each.",
    )


def _generation_bound(evidence: Evidence, flow: _Flow) -> Finding | None:
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


def _trainer_bound(evidence: Evidence, flow: _Flow) -> Finding | None:
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


def _run_ahead(evidence: Evidence, flow: _Flow) -> Finding | None:
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


def _balanced(evidence: Evidence, flow: _Flow) -> Finding | None:
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


def _lockstep(evidence: Evidence, flow: _Flow) -> Iterator[Finding]:
    if flow.wait >= HIGH:
        yield Finding(
            rule="agrpo/lockstep",
            severity=Severity.NOTE,
            title="Lockstep: the two sides take turns",
            reading=f"{_training_waits(flow)}. With async.max_staleness = 0 no group begins before the step it waits for.",
            change="Nothing, where a run that repeats bit for bit is wanted. To let both sides work at once, set "
            "async.max_staleness to 1 or more.",
        )


def _flow(evidence: Evidence) -> _Flow | None:
    """The flow of the window; None where waits were not measured."""
    steady = _steady(evidence)
    timed = [point.metrics for point in steady if {"perf/step_s", "perf/rollout_wait_s"} <= point.metrics.keys()]
    if len(timed) < evidence.needed:
        return None
    concurrency = _mean(evidence.values("rollout/concurrency", steady))
    waits, load, ceiling, scoring = (
        evidence.values(f"rollout/{name}", steady)
        for name in ("backpressure_s", "load_wait_s", "ceiling_wait_s", "score_block_s")
    )
    samples, trained = evidence.samples_per_step, evidence.mean("batch/samples_per_step")
    return _Flow(
        step_seconds=fmean(metrics["perf/step_s"] for metrics in timed),
        wait_seconds=fmean(metrics["perf/rollout_wait_s"] for metrics in timed),
        pressure_seconds=None if concurrency is None and not waits else math.fsum(waits) / len(steady),
        load_seconds=math.fsum(load) / len(steady),
        ceiling_seconds=math.fsum(ceiling) / len(steady),
        scoring_seconds=math.fsum(scoring) / len(steady),
        concurrency=concurrency,
        cap=_mean(evidence.values("rollout/concurrency_cap", steady)),
        queued=_mean(evidence.values("rollout/queue_size", steady)),
        samples_per_step=samples,
        trained=None if trained is None or not samples else trained / samples,
        set_aside=evidence.set_aside,
    )


def _steady(evidence: Evidence) -> list[StepPoint]:
    """The window without the first steps of attempts."""
    first = {attempt: point.step for point in reversed(evidence.history) for attempt in (point.attempt,)}
    return [point for point in evidence.window if point.step != first[point.attempt]]


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _training_waits(flow: _Flow) -> str:
    return f"Training waits {flow.wait_seconds:.1f} s of every {flow.step_seconds:.1f} s step for scored groups"


def _generation_waits(flow: _Flow) -> str:
    return (
        f"Groups wait {flow.pressure_seconds:.2f} s of the {flow.step_seconds:.1f} s that a step takes for leave to run "
        "further ahead"
    )


def _held(waited: float) -> str:
    """How long a limit on rollouts holds groups back; nothing where none had to wait."""
    return f" Groups wait {seconds(waited)} for a place." if waited else ""


def _servers(evidence: Evidence) -> str:
    used, queued = (evidence.mean(f"rollout/vllm_{name}") for name in ("kv_cache_usage_frac", "queued_requests"))
    if used is None or queued is None:
        return ""
    return f" The server's KV cache is {percent(used)} full, and {queued:.0f} requests wait in it."


def _queued(flow: _Flow) -> str:
    return f"{flow.queued:.0f} scored samples are queued when a step begins, which takes {flow.samples_per_step:.0f}"


def _meanwhile(evidence: Evidence, flow: _Flow) -> str:
    """What generation and scoring do while training waits."""
    rate, unscored = evidence.mean("rollout/generated_tokens_per_s"), evidence.mean("rollout/score_queue_size")
    parts = [
        *([] if rate is None else [f"the engine generates {rate:,.0f} tokens/s"]),
        *([] if flow.concurrency is None else [f"{flow.concurrency:.0f} rollouts are in flight"]),
        *([] if unscored is None else [f"{unscored:.0f} finished groups wait for scores"]),
    ]
    told = f" Meanwhile {', '.join(parts)}." if parts else ""
    return told + _way(evidence) + _little(flow)


def _little(flow: _Flow) -> str:
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
