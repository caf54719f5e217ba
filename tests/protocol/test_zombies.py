"""Learners that stand still at a write while a successor finishes the run, and then go on: they change nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agrpo.errors import Retired
from agrpo.queue.amendments import amend
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import go_back
from tests.protocol.learners import Outcome, Zombie, consumed, fill, learn, outcome
from tests.protocol.stopping import Place, Side, Stores
from tests.protocol.test_kills import WRITES, writes_of

Begin = Callable[..., RunFolder]

QUICK = [Place(*writes_of(2)[index], Side.BEFORE) for index in (0, 2, 3, 7)]
"""At the plan, at the done record, and behind the fence: at the weights, at the checkpoint."""
EVERY = [Place(*write, side) for write in WRITES[1:] for side in Side]


def _changes_nothing(place: Place, begin: Begin, stores: Stores) -> None:
    folder = fill(begin())
    zombie = Zombie(folder, stores, place)
    learn(folder, stores)
    finished = outcome(folder)
    error = zombie.let_go()
    assert error is None or isinstance(error, Retired)
    _assert_same(folder, finished)
    learn(folder, stores)
    _assert_same(folder, finished)


def _assert_same(folder: RunFolder, finished: Outcome) -> None:
    assert outcome(folder) == finished
    assert consumed(folder) == list(range(6))
    newest = max(folder.filesystem.list("weights"))
    assert newest.startswith(f"{finished.newest[0]:08d}-{finished.newest[1][:16]}")


@pytest.mark.parametrize("place", QUICK, ids=str)
def test_a_zombie_changes_nothing(place: Place, begin_in_memory: Begin, stores: Stores):
    _changes_nothing(place, begin_in_memory, stores)


@pytest.mark.parametrize("place", QUICK[:2], ids=str)
def test_a_zombie_before_the_fence_publishes_nothing(place: Place, begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory())
    zombie = Zombie(folder, stores, place)
    learn(folder, stores)
    assert isinstance(zombie.let_go(), Retired)
    assert folder.versions(0) == [0, 1]
    assert folder.done_steps(0) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("place", EVERY, ids=str)
def test_a_zombie_changes_nothing_wherever_it_stood(place: Place, begin_in_memory: Begin, stores: Stores):
    _changes_nothing(place, begin_in_memory, stores)


def test_a_zombie_that_finds_its_attempt_void_says_who_goes_on(begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory())
    zombie = Zombie(folder, stores, Place("put", "bases/000000.json", Side.BEFORE))
    learn(folder, stores)
    error = zombie.let_go()
    assert isinstance(error, Retired)
    assert str(error) == "attempt 0 was declared void by a newer one before it began; the newer one goes on"
    assert folder.versions(0) == []
    assert folder.planned_steps(0) == []


def test_a_zombie_leaves_the_weights_that_the_run_went_back_to(begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory(), attempt=0)
    zombie = Zombie(folder, stores, Place("put", "versions/000000/00000003.json", Side.BEFORE))
    go_back(folder, 1)
    rewinder = Zombie(folder, stores, Place("put", "bases/000001.json", Side.AFTER))
    assert "00000001" in [name[:8] for name in folder.filesystem.list("weights")]
    assert isinstance(zombie.let_go(), Retired | None)
    assert "00000001" in [name[:8] for name in folder.filesystem.list("weights")]
    rewinder.writer.dead = True
    rewinder.let_go()


def test_a_zombie_at_its_end_neither_exports_nor_says_that_the_run_is_over(begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory(stop={"max_steps": 2, "stall_seconds": 15}))
    zombie = Zombie(folder, stores, Place("put_folder", "checkpoints/00000002-000000", Side.AFTER))
    amend(folder, {"stop.max_steps": 3}, {"stop.max_steps": "test"})
    successor = Zombie(folder, stores, Place("put", "steps/000001/00000003.plan.json", Side.BEFORE))
    assert isinstance(zombie.let_go(), Retired)
    assert folder.filesystem.local_folder("model") is None
    assert not folder.has_finished(folder.hint())
    successor.let_go()
    assert folder.has_finished(folder.hint())
    assert folder.filesystem.local_folder("model") is not None


def test_the_late_word_of_an_older_learner_that_the_run_is_over_is_not_heeded(begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory(stop={"max_steps": 2, "stall_seconds": 15}))
    learn(folder, stores)
    over = folder.hint()
    assert (over.attempt, folder.has_finished(over)) == (0, True)
    amend(folder, {"stop.max_steps": 3}, {"stop.max_steps": "test"})
    successor = Zombie(folder, stores, Place("put", "steps/000001/00000003.plan.json", Side.BEFORE))
    folder.write_hint(over)
    assert not folder.has_finished(folder.hint())
    successor.let_go()


def test_the_late_word_of_an_older_learner_takes_nothing_back(begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory())
    zombie = Zombie(folder, stores, Place(*writes_of(2)[0], Side.BEFORE))
    learn(folder, stores)
    assert folder.has_finished(folder.hint())
    zombie.let_go()
    assert folder.has_finished(folder.hint())
