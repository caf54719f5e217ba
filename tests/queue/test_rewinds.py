"""Going back: which tickets are void, and which prompt each of the others asks."""

from __future__ import annotations

from agrpo.queue.rewinds import Rewinds
from agrpo.records.progress import Base, DropReason

ONCE = {
    0: Base(attempt=0),
    2: Base(
        attempt=2,
        parent=0,
        base_step=4,
        adopted_through=4,
        rewind=0,
        first_ticket=10,
        reissue=[6, 8],
        prompts=[6, 8],
        next_prompt=10,
    ),
}
TWICE = {
    **ONCE,
    3: Base(attempt=3, parent=2, base_step=6, adopted_through=6),
    5: Base(
        attempt=5,
        parent=3,
        base_step=2,
        adopted_through=2,
        rewind=1,
        first_ticket=13,
        reissue=[5, 7, 11],
        prompts=[5, 7, 8],
        next_prompt=10,
    ),
}


def under(**claims: int):
    """Bases of the first claims by ticket; those not named are under the newest base that knew of them."""
    return lambda ticket: claims.get(f"t{ticket}", 0 if ticket < 10 else 2 if ticket < 13 else 5)


def test_a_run_that_never_went_back_asks_the_prompt_of_the_ticket():
    rewinds = Rewinds({0: Base(attempt=0), 1: Base(attempt=1, parent=0, base_step=3, adopted_through=3)}, under())
    assert not rewinds
    assert [rewinds.prompt_of(ticket) for ticket in (0, 7, 99)] == [0, 7, 99]
    assert rewinds.void(3) is None
    assert rewinds.left(9) == ([], 9)


def test_prompts_that_were_given_up_come_first_and_then_the_next_ones():
    rewinds = Rewinds(ONCE, under())
    assert [rewinds.prompt_of(ticket) for ticket in (10, 11, 12, 13)] == [6, 8, 10, 11]
    assert [rewinds.prompt_of(ticket) for ticket in (5, 9)] == [5, 9]
    assert rewinds.left(11) == ([8], 10)
    assert rewinds.left(14) == ([], 12)


def test_a_ticket_claimed_by_who_had_not_seen_the_base_is_void_and_takes_no_prompt():
    rewinds = Rewinds(ONCE, under(t10=0, t12=0))
    assert rewinds.void(10) is DropReason.VOID_BASE
    assert [rewinds.prompt_of(ticket) for ticket in (11, 13, 14)] == [6, 8, 10]
    assert rewinds.void_tickets(range(5, 14)) == {
        6: DropReason.REISSUED,
        8: DropReason.REISSUED,
        10: DropReason.VOID_BASE,
        12: DropReason.VOID_BASE,
    }
    assert rewinds.void_below(12) == {6, 8, 10}


def test_going_back_twice_keeps_what_was_given_up_the_first_time():
    rewinds = Rewinds(TWICE, under())
    assert [rewinds.prompt_of(ticket) for ticket in (10, 11, 12)] == [6, 8, 10]
    assert [rewinds.prompt_of(ticket) for ticket in (13, 14, 15, 16, 17)] == [5, 7, 8, 10, 11]
    assert sorted(rewinds.void_tickets(range(17))) == [5, 6, 7, 8, 11]


def test_what_was_sampled_in_steps_that_were_left_behind_does_not_count():
    rewinds = Rewinds(TWICE, under())
    assert [rewinds.version_counts(0, step) for step in (0, 2, 3)] == [True, True, False]
    assert [rewinds.version_counts(5, step) for step in (2, 3, 99)] == [True, True, True]
    assert not rewinds.version_counts(4, 0)
    assert rewinds.version_counts(4, None)
