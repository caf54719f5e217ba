"""Claims: one holder per try, the lowest ticket first, and a way to take over from the dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from agrpo.errors import RecordError
from agrpo.queue.claims import Claim, Claims
from agrpo.queue.filesystems import Filesystem


def test_a_ticket_has_one_owner(store: Filesystem):
    claims = Claims(store)
    assert claims.take(7, owner="a", base=2)
    assert not claims.take(7, owner="b", base=2)
    assert not claims.take(7, owner="a", base=2)
    assert claims.holder(7).owner == "a"


def test_a_claim_tells_who_took_what_when_and_under_which_base(store: Filesystem):
    before = time.time()
    Claims(store).take(1234, owner="generator-0-17", base=3)
    claim = Claims(store).holder(1234)
    assert before <= claim.claimed_at <= time.time()
    assert claim == Claim(ticket=1234, number_try=0, owner="generator-0-17", base=3, claimed_at=claim.claimed_at)
    assert store.list("claims/000001") == ["000000001234.0000.json"]


def test_a_dead_owners_claim_is_taken_over_by_one_other(store: Filesystem):
    claims = Claims(store)
    claims.take(7, owner="dead", base=0)
    assert claims.take(7, owner="b", base=1, number_try=claims.holder(7).number_try + 1)
    assert not claims.take(7, owner="c", base=1, number_try=1)
    assert (claims.holder(7).owner, claims.holder(7).number_try) == ("b", 1)
    assert claims.tickets(0) == [7]


def test_nobody_holds_a_ticket_that_was_not_claimed(store: Filesystem):
    Claims(store).take(70, owner="a", base=0)
    assert Claims(store).holder(7) is None


def test_the_lowest_free_ticket_is_the_first_gap_from_the_floor_on(store: Filesystem):
    claims = Claims(store)
    assert claims.lowest_free(0) == 0
    for ticket in (0, 1, 3, 998, 999, 1000, 1001):
        claims.take(ticket, owner="a", base=0)
    assert [claims.lowest_free(start) for start in (0, 2, 3, 4, 998, 1000, 5000)] == [2, 2, 4, 4, 1002, 1002, 5000]


def test_claimed_tickets_come_in_order_once_each_whatever_the_tries(store: Filesystem):
    claims = Claims(store)
    for ticket, number_try in ((1001, 0), (5, 0), (5, 1), (999, 0), (5, 10)):
        claims.take(ticket, owner="a", base=0, number_try=number_try)
    assert claims.tickets(0) == [5, 999, 1001]
    assert claims.tickets(6) == [999, 1001]
    assert claims.holder(5).number_try == 10


def test_an_owner_finds_what_it_still_holds(store: Filesystem):
    claims = Claims(store)
    for ticket, owner in enumerate(["a", "b", "a", "a", "b"]):
        claims.take(ticket, owner=owner, base=0)
    claims.take(2, owner="b", base=0, number_try=1)
    claims.take(4, owner="a", base=0, number_try=1)
    assert [(claim.ticket, claim.number_try) for claim in claims.of_owner("a", 0)] == [(0, 0), (3, 0), (4, 1)]
    assert [claim.ticket for claim in claims.of_owner("a", 3)] == [3, 4]
    assert claims.of_owner("nobody", 0) == []


def test_racing_generators_share_the_tickets_without_a_gap(open_store: Callable[[], Filesystem]):
    taken: list[int] = []

    def generate(owner: str) -> None:
        claims = Claims(open_store())
        for _ in range(36):
            ticket = claims.lowest_free(0)
            if ticket < 12 and claims.take(ticket, owner=owner, base=0):
                taken.append(ticket)

    generators = [threading.Thread(target=generate, args=(f"g{number}",)) for number in range(3)]
    for generator in generators:
        generator.start()
    for generator in generators:
        generator.join()
    assert sorted(taken) == Claims(open_store()).tickets(0) == list(range(12))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"ticket": 1, "colour": "red"}', b"[1]"])
def test_bytes_that_are_no_claim_are_refused_with_their_key(store: Filesystem, data: bytes):
    store.put("claims/000000/000000000001.0000.json", data)
    with pytest.raises(RecordError, match=r"claims/000000/000000000001\.0000\.json is not a claim"):
        Claims(store).holder(1)
