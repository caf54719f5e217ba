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


def share_done(document: Mapping[str, Any], point: StepPoint) -> float:
    """The share of the run that is behind it once `point` is done, 0 to 1.

    Steps where `stop.max_steps` is set, else consumed prompts of the `stop.epochs` passes. 0 where `document` (run.json)
    sets no end.
    """
    end = _end(document)
    return 0.0 if end is None else min(1.0, _reached(document, point) / end)


def seconds_left(document: Mapping[str, Any], points: Sequence[StepPoint]) -> float | None:
    """Seconds from the newest of `points`, ordered by step, to the run's end at the pace of its recent steps.

    The pace is the median interval of the last 20 steps of the newest point's attempt, so that neither a pause between
    two attempts nor one slow step counts. None before that attempt has two steps, or where nothing tells the end.
    """
    end = _end(document)
    recent = _recent(points)
    if end is None or len(recent) < 2:
        return None
    intervals = [after.finished_at - before.finished_at for before, after in pairwise(recent)]
    reached = _reached(document, recent[-1])
    per_step = (reached - _reached(document, recent[0])) / len(intervals)
    if per_step <= 0:
        return None
    return max(0.0, end - reached) / per_step * median(intervals)


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
