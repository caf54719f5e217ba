"""Lookahead: tickets that take no place in any step, counted from the start or from a learner's word."""

from __future__ import annotations

import pytest

from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Base
from agrpo.stages.lookahead import Lookahead
from tests.stages.groups import a_config, a_group, publish

CONFIG = a_config(asynchronous={"max_staleness": 0}, step={"zero_variance": "refill"})
EQUAL = {1, 2, 5, 7}
BACK = {
    0: Base(attempt=0),
    1: Base(
        attempt=1,
        parent=0,
        base_step=1,
        adopted_through=1,
        rewind=0,
        first_ticket=8,
        reissue=[4, 5],
        prompts=[4, 5],
        next_prompt=8,
    ),
}


@pytest.fixture
def scored(folder: RunFolder) -> RunFolder:
    for ticket in range(8):
        publish(folder, a_group(ticket), (1.0, 1.0) if ticket in EQUAL else (0.0, 1.0))
    return folder


def never(ticket: int) -> int:
    return 0 if ticket < 8 else 1


@pytest.mark.parametrize(("bases", "void"), [({0: Base(attempt=0)}, set()), (BACK, {4, 5})])
def test_counted_from_a_learners_word_it_is_as_counted_from_the_start(scored: RunFolder, bases: dict, void: set[int]):
    rewinds = Rewinds(bases, never)
    took_none = EQUAL | void
    whole = Lookahead(scored, CONFIG)
    for floor in (0, 3, 6):
        from_floor = Lookahead(scored, CONFIG, floor=floor, replaced=sum(ticket < floor for ticket in took_none))
        for ticket in range(floor, 9):
            expected = sum(below < ticket for below in took_none)
            assert whole.dropped_before(ticket, rewinds) == expected
            assert from_floor.dropped_before(ticket, rewinds) == expected


def test_what_was_read_of_claims_is_not_read_again_under_more_bases():
    asked: list[int] = []

    def base_of(ticket: int) -> int:
        asked.append(ticket)
        return 1

    before = Rewinds(BACK, base_of)
    assert before.prompt_of(12) == 10
    assert asked == [8, 9, 10, 11]
    after = Rewinds({**BACK, 2: Base(attempt=2, parent=1, base_step=3, adopted_through=3)}, base_of, before)
    assert after.prompt_of(13) == 11
    assert asked == [8, 9, 10, 11, 12]
