"""Whole runs whose learner is two processes."""

from __future__ import annotations

import pytest

from agrpo.audit.replaying import replay
from agrpo.audit.verifying import verify
from agrpo.errors import ReplayMismatch
from agrpo.queue.amendments import amend
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Plan
from agrpo.stages.ranks import Recruiter
from tests.stages.walk import LOCKSTEP, Walk, dones, walk

TWO = {"workers": {"learner_processes": 2}}
KEPT_APART = {"checkpoint": {"every_seconds": 1000}}
"""No checkpoint between the first and the last."""


def plans(folder: RunFolder, attempt: int = 0) -> list[Plan]:
    found = [folder.plan(StepKey(attempt, step)) for step in folder.done_steps(attempt)]
    return [plan for plan in found if plan is not None]


def test_a_run_with_two_learner_processes_learns_as_one_with_one(begin):
    alone, shared = (
        begin("alone", stop={"max_steps": 1}, **LOCKSTEP),
        begin("shared", stop={"max_steps": 1}, **TWO, **LOCKSTEP),
    )
    walk(alone)
    walk(shared)
    (one,), (two,) = dones(alone), dones(shared)
    assert (plans(alone)[0].ranks, plans(shared)[0].ranks) == (1, 2)
    assert two.loss == pytest.approx(one.loss, abs=1e-6)
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    for name in ("reward", "entropy", "batch/trained_tokens_per_step"):
        assert two.metrics[name] == pytest.approx(one.metrics[name], abs=1e-6)
    assert {(s.ticket, s.rollout_index) for s in two.samples} == {(s.ticket, s.rollout_index) for s in one.samples}
    assert verify(shared).findings == []


@pytest.mark.slow
def test_a_shared_run_repeats_and_its_replay_has_as_many_processes(begin):
    runs = [begin(name, stop={"max_steps": 2}, **TWO, **LOCKSTEP) for name in ("first", "second")]
    for folder in runs:
        walk(folder)
    assert [done.digests for done in dones(runs[0])] == [done.digests for done in dones(runs[1])]
    outcome = replay(runs[0], from_start=True)
    assert (outcome.difference, [step.step for step in outcome.steps]) == (None, [1, 2])


def stopped_after_two_steps(begin) -> RunFolder:
    """A shared run that has nothing but its first checkpoint to go on from."""
    folder = begin(stop={"max_steps": 3}, **KEPT_APART, **TWO, **LOCKSTEP)
    first = Walk(folder).start("generator", "scorer", "learner")
    first.until(lambda: len(folder.done_steps(0)) >= 2)
    first.stop.set()
    for thread in first.threads:
        thread.join(60)
    for name in folder.filesystem.list("checkpoints"):
        if not name.startswith("00000000"):
            folder.filesystem.delete(f"checkpoints/{name}")
    return folder


@pytest.mark.slow
def test_steps_of_two_processes_are_replayed_by_two_before_the_run_goes_on_with_one(begin):
    folder = stopped_after_two_steps(begin)
    amend(folder, {"workers.learner_processes": 1, "stop.max_steps": 4}, {})
    walk(folder)
    ranks = [plan.ranks for attempt in (0, 1) for plan in plans(folder, attempt)]
    assert len(ranks) == 4 and ranks[:2] == [2, 2] and ranks[-1] == 1
    assert verify(folder).findings == []


@pytest.mark.slow
@pytest.mark.parametrize("on_difference", ["stop", "continue"])
def test_where_so_many_processes_cannot_be_had_the_replay_may_differ(
    begin, on_difference: str, monkeypatch: pytest.MonkeyPatch
):
    folder = stopped_after_two_steps(begin)
    amend(folder, {"workers.learner_processes": 1, "resume.on_difference": on_difference}, {})
    monkeypatch.setattr(Recruiter, "can_be", lambda self, size: size == 1)
    if on_difference == "stop":
        with pytest.raises(ReplayMismatch, match="by 1 of the 2 processes"):
            Walk(folder).start("learner").join()
        return
    walk(folder)
    (event,) = [
        event
        for stream in folder.event_streams()
        for number in folder.event_numbers(stream)
        if (event := folder.event(stream, number)) is not None and event.kind == "replay_differs"
    ]
    assert event.payload["step"] == 1
    assert max(done.step for done in dones(folder, 1)) == 3
