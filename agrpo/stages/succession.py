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
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agrpo.errors import Retired, StoreLostWrites
from agrpo.queue.lineage import Segment, attempt_of, lineage, members
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Attempt, Base, Done, Plan, Rewind


@dataclass(frozen=True, kw_only=True)
class Inheritance:
    """What a new attempt finds."""

    attempt: int
    bases: Mapping[int, Base]
    segments: list[Segment]
    """Lineage before this attempt, oldest first; empty where the run has no history."""
    last_step: int
    """Last step done on the lineage (K), or the one that the run is to go back to."""
    half_done: list[Plan]
    """Plans of the newest member that have no done record, in order. None are taken over where the run goes back."""
    rewind: Rewind | None = None
    """The wish to go back that this attempt fulfils."""

    @property
    def parent(self) -> int | None:
        return self.segments[-1].attempt if self.segments else None

    @property
    def adopted_through(self) -> int:
        """Last step whose sampled groups stay valid."""
        if self.parent is None or self.rewind is not None:
            return self.last_step
        return max(self.last_step, self.bases[self.parent].adopted_through)


def begin_attempt(folder: RunFolder, machine: dict[str, str] | None = None) -> Inheritance:
    """Fence off every older learner and read the history it leaves. `machine`: as in `Attempt`."""
    attempt = _write_attempt(folder, machine or {})
    for older in [number for number in folder.attempts() if number < attempt]:
        if older not in folder.bases():
            _must_have_done_nothing(folder, older)
            folder.write_base(Base(attempt=older, void=True))
    bases = folder.bases()
    segments = lineage(bases)
    if not segments:
        return Inheritance(attempt=attempt, bases=bases, segments=[], last_step=0, half_done=[])
    newest = segments[-1]
    last = max(folder.done_steps(newest.attempt), default=newest.first - 1)
    rewind = _unfulfilled(folder, bases)
    if rewind is not None:
        step = min(last, rewind.step)
        return Inheritance(attempt=attempt, bases=bases, segments=segments, last_step=step, half_done=[], rewind=rewind)
    plans = [folder.plan(StepKey(newest.attempt, step)) for step in folder.planned_steps(newest.attempt) if step > last]
    half_done = [plan for plan in plans if plan is not None]
    return Inheritance(attempt=attempt, bases=bases, segments=segments, last_step=last, half_done=half_done)


def _write_attempt(folder: RunFolder, machine: dict[str, str]) -> int:
    while True:
        number = max([*folder.attempts(), *folder.bases()], default=-1) + 1
        attempt = Attempt(
            attempt=number, host=socket.gethostname(), pid=os.getpid(), started_at=time.time(), machine=machine
        )
        if folder.write_attempt(attempt):
            return number


def _must_have_done_nothing(folder: RunFolder, attempt: int) -> None:
    """Raise `StoreLostWrites` where an attempt has no base and something that is written only after it."""
    if folder.done_steps(attempt) or folder.versions(attempt):
        raise StoreLostWrites(
            f"attempt {attempt} has done steps or published versions, and {folder.url}/bases/{attempt:06d}.json is gone: "
            "expected it to be written before them. Bring it back from a copy of the run; without it those steps are lost"
        )


def _unfulfilled(folder: RunFolder, bases: Mapping[int, Base]) -> Rewind | None:
    """The newest wish to go back that no base of the chain fulfils."""
    chain = [bases[member.attempt] for member in members(bases)]
    fulfilled = max((base.rewind for base in chain if base.rewind is not None), default=-1)
    newest = max(folder.rewinds(), default=-1)
    return folder.rewind(newest) if newest > fulfilled else None


def accede(folder: RunFolder, base: Base, plans: list[Plan]) -> list[Plan]:
    """Take the history over: copy these plans under the attempt of `base`, then write it.

    Returns the copied plans, to be carried out in order. Raises `Retired` where a newer attempt was first.
    """
    adopted = [
        replace(
            plan, attempt=base.attempt, adopted_from=plan.attempt if plan.adopted_from is None else plan.adopted_from
        )
        for plan in plans
    ]
    for plan in adopted:
        folder.write_plan(plan)
    if not folder.write_base(base):
        raise Retired(f"attempt {base.attempt} was declared void by a newer one before it began; the newer one goes on")
    return adopted


def carried_out_again(plans: list[Plan], half_done: list[Plan], next_version: int) -> list[Plan]:
    """Done plans that a replay did not confirm, and those not done, to be carried out by an attempt of its own weights.

    A number names one content for ever: the last of the done plans publishes under a new one, and so do those after it.
    """
    *others, last = [replace(plan, publish=None, parent_digest="") for plan in plans]
    redone = [*others, replace(last, publish=next_version)]
    for plan in half_done:
        next_version += plan.publish is not None
        number = None if plan.publish is None else next_version
        redone.append(replace(plan, publish=number, parent_digest=""))
    return redone


def next_version(folder: RunFolder, bases: Mapping[int, Base], newest: int) -> int:
    """The number that the next publish takes, after version `newest` of the history.

    Where the history left steps behind, their numbers are taken.
    """
    straight = all(
        base.first_ticket is None and (base.void or base.adopted_through == base.base_step) for base in bases.values()
    )
    if straight:
        return newest + 1
    return 1 + highest_publish(folder, newest)


def highest_publish(folder: RunFolder, newest: int) -> int:
    """The highest version number that any plan of any attempt names, or that is published; at least `newest`."""
    attempts = folder.attempts()
    published = [version for attempt in attempts for version in folder.versions(attempt)]
    return max([newest, *published, *(_last_publish(folder, attempt) for attempt in attempts)])


def _last_publish(folder: RunFolder, attempt: int) -> int:
    """The highest version number in any plan of the attempt."""
    for step in reversed(folder.planned_steps(attempt)):
        plan = folder.plan(StepKey(attempt, step))
        if plan is not None and plan.publish is not None:
            return plan.publish
    return 0


def check_fence(folder: RunFolder, attempt: int) -> None:
    """Raise `Retired` if a newer attempt exists."""
    newest = max(folder.attempts(), default=attempt)
    if newest > attempt:
        other = folder.attempt(newest)
        where = f" (process {other.pid} on {other.host})" if other is not None else ""
        raise Retired(f"attempt {attempt} is retired by attempt {newest}{where}, which goes on with the run")


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
