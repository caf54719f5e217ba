"""The live cap, by what servers say of their load, and what of it a group keeps."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agrpo.errors import EngineError
from agrpo.records.pace import Pace
from agrpo.records.pressure import Pressure
from agrpo.stages.load_control import LOST_POLLS, LoadControl, Tally
from agrpo.stages.load_watch import LoadWatch
from agrpo.stages.slots import Slots


def said(
    usage: float = 0.0,
    queued: int = 0,
    *,
    tokens: int | None = 1000,
    longest: int | None = 10,
    running: int = 0,
    preemptions: int = 0,
    retries: int = 0,
) -> Pressure:
    return Pressure(
        kv_usage=usage,
        running=running,
        queued=queued,
        preemptions=preemptions,
        cache_tokens=tokens,
        max_model_len=longest,
        retries=retries,
    )


def controlled(cap: int, ceiling: int = 512) -> LoadControl:
    """One whose servers have spoken once, and hold so many rollouts."""
    control = LoadControl(ceiling)
    assert control.see(said(tokens=cap * 10 + 9), ended=0) == cap
    return control


pressures = st.builds(
    Pressure,
    kv_usage=st.floats(0, 1),
    running=st.integers(0, 600),
    queued=st.integers(0, 5),
    preemptions=st.integers(0, 1000),
    cache_tokens=st.none() | st.integers(0, 10**6),
    max_model_len=st.none() | st.integers(1, 10**5),
)


@pytest.mark.spec("A-102")
@pytest.mark.parametrize(
    ("tokens", "longest", "cap"),
    [(1000, 10, 100), (1009, 10, 100), (5, 10, 1), (0, 10, 64), (10**6, 10, 512), (None, 10, 64), (1000, None, 64)],
)
def test_the_first_cap_is_what_the_caches_hold(tokens: int | None, longest: int | None, cap: int):
    ceiling = 64 if cap == 64 else 512
    assert LoadControl(ceiling).see(said(0.99, 9, tokens=tokens, longest=longest), ended=0) == cap


@pytest.mark.spec("A-103")
def test_the_cap_grows_by_a_quarter_once_per_cap_sized_number_of_ended_rollouts():
    control = controlled(100)
    caps = [control.see(said(0.59), ended) for ended in (99, 100, 224, 225, 380, 381)]
    assert caps == [100, 125, 125, 156, 156, 195]
    small = controlled(1)
    assert [small.see(said(0.0), ended) for ended in (1, 2, 3, 6, 10)] == [2, 2, 3, 4, 5]


@pytest.mark.spec("A-104")
def test_the_cap_shrinks_by_three_tenths_where_the_cache_is_over_80_percent_full():
    control = controlled(90)
    assert [control.see(said(0.81, queued), 0) for queued in (0, 1, 2, 0)] == [63, 44, 30, 21]
    one = controlled(1)
    assert one.see(said(1.0), 0) == 1


@pytest.mark.spec("A-103")
def test_what_ended_under_a_larger_cap_lets_a_smaller_one_not_grow():
    control = controlled(100)
    assert [control.see(said(usage), ended) for usage, ended in [(0.9, 500), (0.1, 569), (0.1, 570)]] == [70, 70, 87]


@pytest.mark.spec("A-105")
@pytest.mark.parametrize(("usage", "queued"), [(0.6, 0), (0.7, 5), (0.8, 0), (0.59, 1), (0.0, 1)])
def test_the_cap_stays_in_between_and_where_requests_wait(usage: float, queued: int):
    assert controlled(100).see(said(usage, queued), ended=10_000) == 100


@pytest.mark.spec("A-106")
def test_without_a_word_from_the_servers_the_cap_is_the_ceiling():
    control = LoadControl(512)
    assert control.see(None, ended=0) == 512
    assert control.see(said(), ended=0) == 100
    lost = [control.see(None, ended=0) for _ in range(LOST_POLLS + 1)]
    assert lost == [100] * (LOST_POLLS - 1) + [512, 512]
    assert control.see(said(0.9), ended=0) == 70  # it goes on from the cap it had


@given(st.integers(1, 600), st.lists(st.tuples(st.none() | pressures, st.integers(0, 700)), max_size=40))
def test_the_cap_is_always_within_one_and_the_ceiling(ceiling: int, polls: list[tuple[Pressure | None, int]]):
    control, ended, grown = LoadControl(ceiling), 0, [(0, 0)]
    for pressure, more in polls:
        ended += more
        before, cap = control.cap, control.see(pressure, ended)
        assert 1 <= cap <= ceiling
        assert control.cap == cap
        if pressure is not None and cap > before and len(grown) > 1:
            assert pressure.kv_usage < 0.6
            assert not pressure.queued
        grown += [(ended, cap)] if pressure is not None else []


@given(st.lists(st.integers(0, 400), min_size=1, max_size=40))
def test_between_two_growths_at_least_a_cap_of_rollouts_ends(ended: list[int]):
    control, total, grown_at = controlled(20), 0, 0
    for more in ended:
        total += more
        before = control.cap
        if control.see(said(0.1), total) > before:
            assert total - grown_at >= before
            grown_at = total


@pytest.mark.spec("A-320", "A-321", "A-322", "A-323", "A-324")
def test_a_group_keeps_means_over_its_polls_and_rises_of_counters():
    tally, pace = Tally(), Pace(concurrency=4, concurrency_cap=8)
    assert tally.take(pace) == pace
    tally.add(said(0.25, 2, running=4, preemptions=515, retries=1))
    tally.add(said(0.75, 0, running=8, preemptions=518, retries=3))
    first = tally.take(pace)
    assert (first.num_polls, first.kv_cache_usage, first.running_requests, first.queued_requests) == (2, 0.5, 6.0, 1.0)
    assert (first.preemptions, first.retries) == (3, 3)
    tally.add(said(1.0, preemptions=520, retries=3))
    second = tally.take(pace)
    assert (second.num_polls, second.preemptions, second.retries) == (1, 2, 0)
    assert tally.take(pace) == pace


def test_requests_asked_again_are_known_where_servers_do_not_speak_and_nothing_else():
    tally, pace = Tally(), Pace(concurrency=4, concurrency_cap=8)
    tally.add(said(0.5, retries=1))
    assert tally.take(pace).num_polls == 1
    tally.add(Pressure(kv_usage=None, retries=2))
    tally.add(replace(said(0.5, running=9, preemptions=9, retries=5), is_new=False))
    assert tally.take(pace) == replace(pace, retries=4)
    assert tally.take(pace) == pace


@pytest.mark.spec("A-101")
def test_the_cap_stays_while_all_servers_are_away():
    control, away = controlled(100), replace(said(0.9), is_new=False)
    assert [control.see(away, ended) for ended in range(LOST_POLLS + 1)] == [100] * (LOST_POLLS + 1)
    assert [control.see(Pressure(kv_usage=None), 0) for _ in range(LOST_POLLS)] == [100] * (LOST_POLLS - 1) + [512]
    assert control.see(said(0.9), ended=0) == 70


def test_preemptions_of_a_server_that_was_started_again_count_from_its_first_word():
    tally = Tally()
    for preemptions in (500, 510, 4, 9, 0, 1):
        tally.add(said(preemptions=preemptions))
    assert tally.take(Pace(concurrency=1, concurrency_cap=1)).preemptions == 10 + 5 + 1


class Asked:
    """An engine of which nothing is known but how full its servers are: answers, then errors."""

    def __init__(self, *answers: Pressure | Exception | None) -> None:
        self._answers = iter(answers)

    async def pressure(self) -> Pressure | None:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.spec("A-101")
def test_the_watch_sets_the_slots_and_a_server_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture):
    async def looked() -> list[int]:
        slots = Slots(512)
        engine = Asked(said(), said(0.9), EngineError("an HTML page"), TimeoutError(), ValueError("half a JSON"), None)
        watch = LoadWatch(engine, slots)  # type: ignore[arg-type]
        capacities = []
        for _ in range(6):
            await watch.look()
            capacities.append(slots.capacity)
        assert watch.ceiling == 512
        assert watch.told(Pace(concurrency=1, concurrency_cap=1)).num_polls == 2
        return capacities

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(looked()) == [100, 70, 70, 70, 512, 512]
    assert [record.getMessage() for record in caplog.records] == [
        "the load of the engine's servers is not known: EngineError: an HTML page; asked again and again"
    ]


@pytest.mark.spec("A-104")
def test_a_lower_cap_takes_no_slot_away_and_counts_what_ends():
    async def run() -> list[tuple[int, int, bool]]:
        slots, seen = Slots(4), []
        places = slots.queue(6)
        slots.capacity = 2
        for place in places:
            seen.append((slots.in_use, slots.ended, places[-1].granted.done()))
            place.close()
        return [*seen, (slots.in_use, slots.ended, True)]

    assert asyncio.run(run()) == [
        (4, 0, False),
        (3, 1, False),
        (2, 2, False),
        (2, 3, False),
        (2, 4, True),
        (1, 5, True),
        (0, 6, True),
    ]
