"""How far a run is, and how long it will still take, from its document and its newest steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agrpo.instruments.history import StepPoint

RECENT_STEPS = 20
"""Step intervals that the pace is taken from: enough to even out a checkpoint, few enough to follow a change."""
NEWEST_STEPS = 5
"""Where the newest intervals are the longer ones, they are the pace: in a run whose answers grow, every step takes longer."""
LATE_SECONDS = 10.0
"""A step that takes so much longer than the usual one is late; at least half of the usual time."""
FIRST_STEP_SECONDS = 20.0
"""The usual time of an attempt's first step at least: the model is loaded, and the engine is cold."""


def share_done(document: Mapping[str, Any], point: StepPoint) -> float:
    """The share of the run that is behind it once `point` is done, 0 to 1.

    Steps where `stop.max_steps` is set, else consumed prompts of the `stop.epochs` passes. 0 where `document` (run.json)
    sets no end.
    """
    end = _end(document)
    return 0.0 if end is None else min(1.0, _reached(document, point) / end)


def usual_seconds(points: Sequence[StepPoint]) -> float | None:
    """Seconds from a step to the next at the run's pace. None before the newest attempt has two steps.

    The larger of the medians of the last 5 and the last 20 intervals of the newest point's attempt, so that neither a
    pause between two attempts nor one slow step counts, and steps that grow do.
    """
    intervals = [after.finished_at - before.finished_at for before, after in pairwise(_recent(points))]
    return max(median(intervals), median(intervals[-NEWEST_STEPS:])) if intervals else None


def late_seconds(points: Sequence[StepPoint], *, attempt: int | None) -> float:
    """How long after the last step, or after the beginning of `attempt`, the step at work is late.

    `attempt`: the one at work, None before it has begun.
    """
    usual = usual_seconds(points) or 0.0
    if not usual or points[-1].attempt != attempt:
        usual = max(usual, FIRST_STEP_SECONDS)
    return usual + max(LATE_SECONDS, usual / 2)


def seconds_left(document: Mapping[str, Any], points: Sequence[StepPoint], *, since_step: float = 0.0) -> float | None:
    """Seconds to the run's end at its `usual_seconds`. None before the pace is known, or where nothing tells the end.

    `points` are ordered by step. `since_step`: seconds that have passed since the newest; they are taken off until the
    step at work takes longer than usual, since nobody knows what it still takes.
    """
    end, usual = _end(document), usual_seconds(points)
    if end is None or usual is None:
        return None
    recent = _recent(points)
    reached = _reached(document, recent[-1])
    per_step = (reached - _reached(document, recent[0])) / (len(recent) - 1)
    if per_step <= 0:
        return None
    left = max(0.0, end - reached) / per_step * usual
    return max(0.0, left - min(max(0.0, since_step), usual))


def max_steps(document: Mapping[str, Any]) -> int | None:
    """`stop.max_steps`; None where epochs end the run."""
    return _stop(document).get("max_steps")


def _end(document: Mapping[str, Any]) -> int | None:
    """What `_reached` grows to: steps, or prompts of all epochs. None where the document sets no end."""
    steps, epochs = max_steps(document), _stop(document).get("epochs")
    if steps is not None or epochs is None:
        return steps
    return document["prompts_per_epoch"] * epochs


def _reached(document: Mapping[str, Any], point: StepPoint) -> int:
    return point.num_prompts if max_steps(document) is None else point.step


def _stop(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return document["settings"]["tree"].get("stop", {})


def _recent(points: Sequence[StepPoint]) -> list[StepPoint]:
    """The newest steps of one attempt, as many as give `RECENT_STEPS` intervals."""
    return [point for point in points[-RECENT_STEPS - 1 :] if point.attempt == points[-1].attempt]
