"""The chain of attempts: which of their steps, versions and checkpoints count."""

from __future__ import annotations

from agrpo.queue.lineage import Member, Segment, attempt_of, lineage, members
from agrpo.records.progress import Base

BASES = {
    0: Base(attempt=0),
    1: Base(attempt=1, void=True),
    2: Base(attempt=2, parent=0, base_step=5, adopted_through=5),
    3: Base(attempt=3, parent=2, base_step=5, adopted_through=5),
    4: Base(attempt=4, parent=3, base_step=5, adopted_through=5),
}


def test_attempts_without_steps_of_their_own_are_no_part_of_the_steps():
    assert lineage(BASES) == [
        Segment(attempt=0, first=1, last=5),
        Segment(attempt=4, first=6, last=None),
    ]


def test_they_are_members_of_the_chain_all_the_same():
    assert members(BASES) == [
        Member(attempt=4, last=None, through=None),
        Member(attempt=3, last=5, through=5),
        Member(attempt=2, last=5, through=5),
        Member(attempt=0, last=5, through=5),
    ]


def test_every_step_belongs_to_one_attempt():
    segments = lineage(BASES)
    assert [attempt_of(segments, step) for step in (0, 1, 5, 6, 99)] == [None, 0, 0, 4, 4]


def test_before_any_base_there_is_no_history():
    assert lineage({}) == []
    assert members({}) == []
