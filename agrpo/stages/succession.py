"""Succession: how a new incarnation of the learner takes over a run's history.

    write attempts/{a}           every older learner stops at its next fence
    void the older attempts that have no base
    only then list the bases     -> the lineage, and the last step done on it
    …replay…
    copy the plans not done, write bases/{a}

Writing the attempt before listing is the whole safety argument: a done record that the list misses was written by a
learner that will see the attempt, and publish nothing.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, replace

from agrpo.errors import Retired, StoreLostWrites
from agrpo.queue.lineage import Segment, attempt_of, lineage
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Attempt, Base, Done, Plan


@dataclass(frozen=True, kw_only=True)
class Inheritance:
    """What a new attempt finds."""

    attempt: int
    segments: list[Segment]
    """Lineage before this attempt, oldest first; empty where the run has no history."""
    last_step: int
    """Last step done on the lineage (K)."""
    half_done: list[Plan]
    """Plans of the newest member that have no done record, in order."""

    @property
    def parent(self) -> int | None:
        return self.segments[-1].attempt if self.segments else None


def begin_attempt(folder: RunFolder) -> Inheritance:
    """Fence off every older learner and read the history it leaves."""
    attempt = _write_attempt(folder)
    for older in [number for number in folder.attempts() if number < attempt]:
        if older not in folder.bases():
            folder.write_base(Base(attempt=older, void=True))
    segments = lineage(folder.bases())
    if not segments:
        return Inheritance(attempt=attempt, segments=[], last_step=0, half_done=[])
    newest = segments[-1]
    done = folder.done_steps(newest.attempt)
    last = max(done, default=newest.first - 1)
    plans = [folder.plan(StepKey(newest.attempt, step)) for step in folder.planned_steps(newest.attempt) if step > last]
    return Inheritance(
        attempt=attempt, segments=segments, last_step=last, half_done=[plan for plan in plans if plan is not None]
    )


def _write_attempt(folder: RunFolder) -> int:
    while True:
        number = max(folder.attempts(), default=-1) + 1
        attempt = Attempt(attempt=number, host=socket.gethostname(), pid=os.getpid(), started_at=time.time())
        if folder.write_attempt(attempt):
            return number


def accede(folder: RunFolder, inheritance: Inheritance) -> list[Plan]:
    """Take the history over: copy the half-done plans under this attempt, then write its base.

    Returns the copied plans, to be carried out in order. Raises `Retired` where a newer attempt was first.
    """
    attempt = inheritance.attempt
    adopted = [
        replace(plan, attempt=attempt, adopted_from=plan.attempt if plan.adopted_from is None else plan.adopted_from)
        for plan in inheritance.half_done
    ]
    for plan in adopted:
        folder.write_plan(plan)
    base = Base(
        attempt=attempt,
        parent=inheritance.parent,
        base_step=inheritance.last_step,
        adopted_through=inheritance.last_step,
    )
    if not folder.write_base(base):
        raise Retired(f"attempt {attempt} was declared void by a newer one before it began; the newer one goes on")
    return adopted


def check_fence(folder: RunFolder, attempt: int) -> None:
    """Raise `Retired` if a newer attempt exists."""
    newest = max(folder.attempts())
    if newest > attempt:
        raise Retired(f"attempt {attempt} is retired by attempt {newest}; the newer learner goes on with the run")


def plan_of(folder: RunFolder, segments: list[Segment], step: int) -> Plan:
    """The lineage's plan of a done step."""
    plan = folder.plan(_key(segments, step))
    if plan is None:
        raise StoreLostWrites(f"step {step} is done and its plan is gone: the run folder {folder.url} lost a write")
    return plan


def done_of(folder: RunFolder, segments: list[Segment], step: int) -> Done:
    """The lineage's done record of a step."""
    done = folder.done(_key(segments, step))
    if done is None:
        raise StoreLostWrites(
            f"step {step} has successors and no done record: the run folder {folder.url} lost a write"
        )
    return done


def _key(segments: list[Segment], step: int) -> StepKey:
    attempt = attempt_of(segments, step)
    assert attempt is not None, f"step {step} lies before the run's first"
    return StepKey(attempt, step)
