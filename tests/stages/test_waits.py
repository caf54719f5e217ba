"""The clock of a generator's limits, and its queue of groups without scores."""

from __future__ import annotations

from pathlib import Path

from agrpo.records.pace import Limit
from agrpo.stages.scoring_queue import ScoringQueue
from agrpo.stages.waits import Waits
from tests.database.synthetic import add_group, add_scores, new_run


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_second_belongs_to_the_limit_that_held_the_next_group():
    clock = Clock()
    waits = Waits(clock)
    for limit, seconds in [
        (None, 8),
        (Limit.LOAD, 2),
        (Limit.LOAD, 1),
        (Limit.RUN_AHEAD, 4),
        (None, 16),
        (Limit.LOAD, 1),
    ]:
        waits.note(limit)
        clock.now += seconds
    assert (waits.held_by, waits.held_seconds) == (Limit.LOAD, 1.0)
    assert waits.take() == {Limit.LOAD: 4.0, Limit.RUN_AHEAD: 4.0}
    assert (waits.held_by, waits.held_seconds) == (None, 0.0)
    clock.now += 1
    assert waits.take() == {}


def test_a_limit_that_was_seen_for_no_time_has_held_the_group():
    waits = Waits(Clock())
    waits.note(Limit.SCORING)
    assert waits.take() == {Limit.SCORING: 0.0}


def test_a_scoring_queue_is_full_until_some_of_its_groups_are_scored(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    queue = ScoringQueue(folder, 2)
    assert not queue.is_full
    for ticket in (0, 1, 2):
        add_group(folder, ticket)
    queue.add(0)
    assert not queue.is_full
    queue.add(2)
    assert queue.is_full
    add_scores(folder, 1)  # another generator's
    assert not queue.look(floor=0)
    assert queue.is_full
    add_scores(folder, 2)
    assert queue.look(floor=0)
    assert (len(queue), queue.is_full) == (1, False)


def test_a_group_that_is_consumed_without_scores_is_not_waited_for(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    queue = ScoringQueue(folder, 2)
    for ticket in (3, 4):
        add_group(folder, ticket)
        queue.add(ticket)
    assert not queue.look(floor=3)
    assert queue.look(floor=4)
    assert (len(queue), queue.is_full) == (1, False)
