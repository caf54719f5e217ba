"""The measures that the live view tells in a line each, with their units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from agrpo.instruments.history import StepPoint
from agrpo.instruments.limits import SHARES, binding, waits_of
from agrpo.instruments.live.looking import Look, State
from agrpo.instruments.wording import count, duration, number, percent
from agrpo.records.pace import Limit, Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureLine:
    """One line."""

    label: str
    text: str
    history: Sequence[float] = field(default_factory=list)
    """The first measure of the line, one value for each step; NaN where the step has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Newest:
    """The newest value of a measure."""

    value: float
    step: str
    """` (step 3)`, where a later step has no value of it; else empty."""


def series(points: Sequence[StepPoint], name: str) -> list[float]:
    """A measure's values, one for each step; NaN where the step has none."""
    values = [point.metrics.get(name, math.nan) for point in points]
    return [value if math.isfinite(value) else math.nan for value in values]


def newest(points: Sequence[StepPoint], name: str) -> Newest | None:
    """The newest value and whose it is; None where no step has one."""
    for point in reversed(points):
        if math.isfinite(value := point.metrics.get(name, math.nan)):
            return Newest(value=value, step="" if point is points[-1] else f" (step {point.step})")
    return None


def measure_lines(look: Look) -> list[MeasureLine]:
    """What the newest step says, and where the groups are now. A measure that was not logged is left out."""
    lines = [
        _tokens(look.points),
        _step_time(look.points),
        _length(look.points),
        _entropy(look.points),
        _equal(look.points),
        _staleness(look),
        _ahead(look),
        _in_flight(look),
        _queued(look),
        _held(look.points),
        _servers(look.points),
    ]
    return [line for line in lines if line is not None]


def _tokens(points: Sequence[StepPoint]) -> MeasureLine | None:
    names = {
        "generated": "rollout/generated_tokens_per_s",
        "forwarded": "perf/wall_clock_forwarded_tokens_per_s",
    }
    told = {what: found for what, name in names.items() if (found := newest(points, name))}
    if not told:
        return None
    text = ", ".join(f"{number(found.value)} {what}{found.step}" for what, found in told.items())
    return MeasureLine(label="tokens/s", text=text, history=series(points, names[next(iter(told))]))


def _step_time(points: Sequence[StepPoint]) -> MeasureLine | None:
    """How long a step takes, and how much of that the learner waits for groups."""
    took, waited = newest(points, "perf/step_s"), newest(points, "perf/rollout_wait_s")
    if took is None:
        return None
    text = duration(took.value) + took.step
    if waited is not None and waited.step == took.step:
        text += f", of it {duration(waited.value)} waiting for groups"
    return MeasureLine(label="step time", text=text, history=series(points, "perf/step_s"))


def _length(points: Sequence[StepPoint]) -> MeasureLine | None:
    length, cut = newest(points, "completions/mean_length"), newest(points, "completions/clipped_ratio")
    if length is None:
        return None
    text = f"{length.value:,.1f} tokens{length.step}"
    text += f", {percent(cut.value)} cut off{cut.step}" if cut else ""
    return MeasureLine(label="completions", text=text, history=series(points, "completions/mean_length"))


def _entropy(points: Sequence[StepPoint]) -> MeasureLine | None:
    found = newest(points, "entropy")
    if found is None:
        return None
    return MeasureLine(label="entropy", text=f"{found.value:.3f} nats{found.step}", history=series(points, "entropy"))


def _equal(points: Sequence[StepPoint]) -> MeasureLine | None:
    found = newest(points, "frac_zero_std_groups")
    if found is None:
        return None
    text = f"{percent(found.value)} of the groups{found.step}"
    return MeasureLine(label="equal rewards", text=text, history=series(points, "frac_zero_std_groups"))


def _staleness(look: Look) -> MeasureLine | None:
    mean, most = (newest(look.points, f"sample/staleness_{kind}") for kind in ("mean", "max"))
    if mean is None or most is None:
        return None
    limit = look.settings["async"]["max_staleness"]
    text = f"mean {mean.value:.1f}, max {most.value:.0f} of {limit} versions{mean.step}"
    text += " (lockstep)" if limit == 0 else ""
    return MeasureLine(label="staleness", text=text, history=series(look.points, "sample/staleness_mean"))


def _ahead(look: Look) -> MeasureLine | None:
    """Where the groups are now that are begun and not trained."""
    if look.state is State.FINISHED:
        return None
    pipeline = look.pipeline
    groups = count(pipeline.ahead, "group")
    if pipeline.most is not None:
        # The allowance is of tokens: where answers grow, fewer groups are allowed than are there.
        allowed = pipeline.ahead <= pipeline.most
        groups = (
            f"{pipeline.ahead:,} of {pipeline.most:,} groups" if allowed else f"{groups}, {pipeline.most:,} allowed"
        )
    where = f"{pipeline.generating:,} generating, {pipeline.unscored:,} unscored, {pipeline.scored:,} scored"
    return MeasureLine(label="run-ahead", text=f"{groups}: {where}")


def _in_flight(look: Look) -> MeasureLine | None:
    """The rollouts in flight now, of how many, and the limit that keeps the next group from being started."""
    standing = _standing(look)
    if not standing:
        return None
    running, cap, ceiling = (_sum(standing, name) for name in ("in_flight", "cap", "ceiling"))
    limit = f"{Limit.CEILING}" if cap == ceiling else f"{Limit.LOAD}; {Limit.CEILING} {ceiling:,}"
    text = f"{running:,} of {cap:,} rollouts ({limit})"
    held: dict[str, float] = {}
    for told, quiet_seconds in standing:
        if told.held_by is not None:
            held[told.held_by] = max(held.get(told.held_by, 0.0), told.held_seconds + quiet_seconds)
    holds = ", ".join(f"{limit} {duration(seconds)}" for limit, seconds in held.items())
    text += f"; next group held: {holds}" if held else ""
    return MeasureLine(label="in flight", text=text, history=series(look.points, "rollout/concurrency"))


def _queued(look: Look) -> MeasureLine | None:
    """The groups that wait for scores, of how many."""
    standing = _standing(look)
    if not standing:
        return None
    text = f"{_sum(standing, 'unscored'):,} of {_sum(standing, 'queue'):,} groups wait for scores"
    return MeasureLine(label=f"{Limit.SCORING}", text=text)


def _standing(look: Look) -> list[tuple[Standing, float]]:
    """How the generators stand to their limits while the run goes on, each with the seconds since it said so."""
    if look.state is State.FINISHED:
        return []
    return [
        (stage.standing, stage.quiet_seconds)
        for stage in look.stages
        if stage.standing is not None and not stage.silent
    ]


def _sum(standing: Sequence[tuple[Standing, float]], name: str) -> int:
    return sum(getattr(told, name) for told, _ in standing)


def _held(points: Sequence[StepPoint]) -> MeasureLine | None:
    """How long each limit held a generator during the newest step, of those that did."""
    longest = binding(points[-1].metrics) if points else None
    if longest is None:
        return None
    waits = waits_of(points[-1].metrics)
    text = ", ".join(f"{limit} {duration(seconds)}" for limit, seconds in waits.items())
    return MeasureLine(label="groups held", text=text, history=series(points, SHARES[longest]))


def _servers(points: Sequence[StepPoint]) -> MeasureLine | None:
    """How full the engine's servers are."""
    used, running, queued = (
        newest(points, f"rollout/vllm_{name}")
        for name in ("kv_cache_usage_frac", "running_requests", "queued_requests")
    )
    if used is None or running is None or queued is None:
        return None
    text = (
        f"KV cache {percent(used.value)} full, {number(running.value)} requests running, {number(queued.value)} queued"
    )
    history = series(points, "rollout/vllm_kv_cache_usage_frac")
    return MeasureLine(label="servers", text=text + used.step, history=history)
