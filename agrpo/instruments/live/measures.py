"""The measures that the live view tells in a line each, with their units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from agrpo.instruments.history import StepPoint
from agrpo.instruments.live.looking import Look, State


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureLine:
    """One line."""

    label: str
    text: str
    history: Sequence[float] = field(default_factory=list)
    """The first measure of the line, step by step."""


def series(points: Sequence[StepPoint], name: str) -> list[float]:
    """A measure's values, step by step, where it has one."""
    return [value for point in points if math.isfinite(value := point.metrics.get(name, math.nan))]


def measure_lines(look: Look) -> list[MeasureLine]:
    """What the newest step says, and where the groups are now. A measure that was not logged is left out."""
    lines = [
        _tokens(look.points),
        _length(look.points),
        _entropy(look.points),
        _equal(look.points),
        _staleness(look),
        _queue(look),
        _ahead(look),
    ]
    return [line for line in lines if line is not None]


def _tokens(points: Sequence[StepPoint]) -> MeasureLine | None:
    told = {
        "generated": series(points, "rollout/generated_tokens_per_s"),
        "forwarded": series(points, "perf/wall_clock_forwarded_tokens_per_s"),
    }
    parts = [f"{values[-1]:,.0f} {what}" for what, values in told.items() if values]
    if not parts:
        return None
    return MeasureLine(label="tokens/s", text=", ".join(parts), history=next(filter(None, told.values())))


def _length(points: Sequence[StepPoint]) -> MeasureLine | None:
    values, cut = series(points, "completions/mean_length"), series(points, "completions/clipped_ratio")
    if not values:
        return None
    text = f"{values[-1]:,.1f} tokens" + (f", {_percent(cut[-1])} cut off" if cut else "")
    return MeasureLine(label="completions", text=text, history=values)


def _entropy(points: Sequence[StepPoint]) -> MeasureLine | None:
    values = series(points, "entropy")
    return MeasureLine(label="entropy", text=f"{values[-1]:.3f} nats", history=values) if values else None


def _equal(points: Sequence[StepPoint]) -> MeasureLine | None:
    values = series(points, "frac_zero_std_groups")
    if not values:
        return None
    return MeasureLine(label="equal rewards", text=f"{_percent(values[-1])} of the groups", history=values)


def _staleness(look: Look) -> MeasureLine | None:
    means, most = series(look.points, "sample/staleness_mean"), series(look.points, "sample/staleness_max")
    if not means or not most:
        return None
    limit = look.settings["async"]["max_staleness"]
    text = f"mean {means[-1]:.1f}, max {most[-1]:.0f} of {limit} versions"
    return MeasureLine(label="staleness", text=text + (" (lockstep)" if limit == 0 else ""), history=means)


def _queue(look: Look) -> MeasureLine | None:
    """Groups that are scored and wait, and how many samples the learner found when it last began to choose."""
    if look.state is State.FINISHED:
        return None
    samples = series(look.points, "rollout/queue_size")
    text = f"{_groups(look.pipeline.scored)} scored" + (
        f"; {samples[-1]:,.0f} samples when choosing" if samples else ""
    )
    return MeasureLine(label="queue", text=text, history=samples)


def _ahead(look: Look) -> MeasureLine | None:
    if look.state is State.FINISHED:
        return None
    pipeline = look.pipeline
    most = "" if pipeline.most is None else f" of {pipeline.most:,}"
    text = f"{pipeline.ahead:,}{most} groups ({pipeline.generating:,} generating, {pipeline.unscored:,} unscored)"
    return MeasureLine(label="run-ahead", text=text)


def _groups(count: int) -> str:
    return f"{count:,} group" if count == 1 else f"{count:,} groups"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
