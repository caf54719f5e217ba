"""The run's history: the done steps of its lineage, whichever attempts they were."""

from __future__ import annotations

from agrpo.queue.lineage import lineage
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Done


def done_steps(folder: RunFolder) -> list[StepKey]:
    """The steps of the history that are done, in order."""
    return [
        StepKey(segment.attempt, step)
        for segment in lineage(folder.bases())
        for step in folder.done_steps(segment.attempt)
        if segment.first <= step and (segment.last is None or step <= segment.last)
    ]


def newest_done(folder: RunFolder) -> Done | None:
    """The last done step of the history; None before the first."""
    steps = done_steps(folder)
    return folder.done(steps[-1]) if steps else None
