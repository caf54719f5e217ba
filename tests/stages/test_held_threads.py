"""Threads that functions of the user's, or a slow store, hold: what goes on beside them, and what is said meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.errors import DeadlineExceeded
from agrpo.queue.claims import Claims
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.topic import Topic
from agrpo.stages.group_making import GroupMaker
from tests.stages import loops
from tests.stages.calling import allow, begin_calling
from tests.stages.groups import a_group
from tests.stages.walk import Walk

GROUPS = 12
"""More rollouts than asyncio has threads, on whatever machine."""


@pytest.fixture
def held() -> Iterator[None]:
    loops.LET_GO.clear()
    yield
    loops.LET_GO.set()


def blocked(model: Path, place: Path, **tables: Any) -> RunFolder:
    own_loop = {"path": "tests.stages.loops:Blocked", "settings": {"free": 1}}
    folder = begin_calling(model, place, ["done"], rollout_loop=own_loop, **tables)
    allow(folder, GROUPS)
    return folder


@pytest.mark.usefixtures("held")
def test_threads_that_hooks_hold_keep_nobody_from_claiming_publishing_and_ending(tiny_model: Path, tmp_path: Path):
    folder = blocked(tiny_model, tmp_path)
    work = Walk(folder).start("generator")
    work.until(lambda: len(folder.claims.tickets(0)) == GROUPS and folder.groups.exists(0))
    began = time.monotonic()
    work.stop.set()
    work.join()
    assert time.monotonic() - began < 30, "the loop's end did not wait for the 60 s of those threads"
    assert folder.groups.numbers() == [0]


def test_a_store_that_takes_no_claim_is_named_in_beats_and_at_the_deadline(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    let_go = threading.Event()
    monkeypatch.setattr(Claims, "take", lambda *_, **__: let_go.wait(60))
    folder = begin_calling(tiny_model, tmp_path, ["done"], stop={"stall_seconds": 4.0})
    allow(folder, 1)
    work = Walk(folder).start("generator")
    try:
        work.until(lambda: _waits_for(folder) == "the store to take a claim")
        assert not work.errors
        with pytest.raises(
            DeadlineExceeded, match=r"waited 4 s for the store to take the claim of ticket 0; the limit is 4 s"
        ):
            work.join()
    finally:
        let_go.set()


def test_a_group_that_the_store_is_given_waits_for_the_store(monkeypatch: pytest.MonkeyPatch, folder: RunFolder):
    let_go = threading.Event()
    publish = Topic.publish

    def slowly(*arguments: Any) -> bool:
        return let_go.wait(60) and publish(*arguments)

    async def told() -> str:
        unused: Any = None
        maker = GroupMaker(folder, "generator", order=unused, hooks=unused, load=unused, events=unused)
        publishing = asyncio.create_task(maker._published(a_group(7)))  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(0.05)
        said = maker.waits_for(7)
        let_go.set()
        assert await publishing
        return said

    monkeypatch.setattr(Topic, "publish", slowly)
    assert asyncio.run(told()) == "the store to take its group"
    assert folder.groups.exists(7)


def test_a_stop_and_a_hint_are_heeded_amid_slow_claims(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    take: Callable[..., bool] = Claims.take

    def slowly(*arguments: Any, **named: Any) -> bool:
        time.sleep(0.05)
        return take(*arguments, **named)

    monkeypatch.setattr(Claims, "take", slowly)
    folder = begin_calling(tiny_model, tmp_path, ["done"], asynchronous={"max_concurrent_rollouts": 4000})
    allow(folder, 1000)
    work = Walk(folder).start("generator")
    work.until(lambda: len(folder.claims.tickets(0)) >= 5)
    allow(folder, 20)  # 50 s of claims before the last of a thousand
    time.sleep(2.5)
    assert len(folder.claims.tickets(0)) <= 30
    allow(folder, 1000)
    work.until(lambda: len(folder.claims.tickets(0)) >= 40)
    work.stop.set()
    work.join()
    assert len(folder.claims.tickets(0)) < 200


def _waits_for(folder: RunFolder) -> str | None:
    return next((beat["waiting_for"] for beat in folder.beats() if beat["stage"] == "generator"), None)
