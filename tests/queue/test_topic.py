"""Slots: one content per number, found from a floor on."""

from __future__ import annotations

import pytest

from agrpo.queue.claims import Claims
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.topic import Topic


class CountingStore:
    """Counts the listings that reach the store behind it."""

    def __init__(self, store: Filesystem) -> None:
        self.store = store
        self.listed: list[str] = []

    def list(self, prefix: str) -> list[str]:
        self.listed.append(prefix)
        return self.store.list(prefix)

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)


def test_a_slot_lies_where_its_number_says(store: Filesystem):
    groups = Topic(store, "groups")
    assert groups.key(42_042) == "groups/000042/000000042042.arrow"
    assert groups.publish(42_042, b"g")
    assert store.get("groups/000042/000000042042.arrow").to_pybytes() == b"g"


def test_the_second_worker_on_a_slot_is_told_and_the_first_result_stands(store: Filesystem):
    scored = Topic(store, "scored")
    assert scored.publish(7, b"first")
    assert not scored.publish(7, b"second")
    assert scored.read(7).to_pybytes() == b"first"


def test_a_slot_exists_once_it_is_published_and_in_no_other_topic(store: Filesystem):
    groups = Topic(store, "groups")
    assert not groups.exists(3)
    groups.publish(3, b"")
    assert groups.exists(3)
    assert not groups.exists(4)
    assert groups.read(4) is None
    assert not Topic(store, "scored").exists(3)


def test_numbers_come_in_order_from_the_floor_on_across_shards(store: Filesystem):
    groups = Topic(store, "groups")
    assert groups.numbers() == []
    for number in (1000, 2, 999, 12_345, 0, 1001):
        groups.publish(number, b"")
    assert groups.numbers() == [0, 2, 999, 1000, 1001, 12_345]
    assert groups.numbers(999) == [999, 1000, 1001, 12_345]
    assert groups.numbers(12_346) == []


def test_shards_below_the_floor_are_not_listed(store: Filesystem):
    for number in (5, 1005, 2005):
        Topic(store, "groups").publish(number, b"")
    counting = CountingStore(store)
    groups = Topic(counting, "groups")
    assert groups.numbers(1900) == [2005]
    assert counting.listed == ["groups", "groups/000001", "groups/000002", "archive/groups"]
    counting.listed.clear()
    assert groups.numbers(1005) == [1005, 2005]
    assert counting.listed == ["groups", "groups/000001", "groups/000002"], "what lies there is not looked up elsewhere"


@pytest.mark.parametrize("late", [3, 9])
def test_a_number_below_the_floor_is_never_given_out_again(store: Filesystem, late: int):
    groups, claims, floor = Topic(store, "groups"), Claims(store), 10
    for ticket in range(floor):
        claims.take(ticket, owner="g", base=0)
        groups.publish(ticket, b"")
    store.delete("groups/000000")
    store.delete("claims/000000")
    assert claims.lowest_free(floor) == 10
    groups.publish(late, b"from a worker that slept through the archiving")
    assert groups.numbers(floor) == []
