"""Whole runs under hindrance: late weights, a lost rollout."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from agrpo.config import ModelSection, resolve
from agrpo.engines import Engine, Needs
from agrpo.engines.transformers import Transformers
from agrpo.errors import EngineError, StaleInFlight
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow, scored_from_arrow
from agrpo.records.rollout import StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.records.seeds import derive_seed
from agrpo.runs import prepare
from agrpo.stages.keeping import Keeper
from tests.stages.walk import Walk, dones, settings, walk

LATE_SECONDS = 1.0


def begin(tiny_model: Path, place: Path, **tables: object) -> RunFolder:
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    return prepare(resolve(values=settings(tiny_model, prompts, place, **tables)))


@pytest.fixture
def late_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Keeper.publish

    def publish_late(keeper: Keeper, version: int, step: int, *, ordinal: int) -> None:
        time.sleep(LATE_SECONDS)
        publish(keeper, version, step, ordinal=ordinal)

    monkeypatch.setattr(Keeper, "publish", publish_late)


@pytest.mark.usefixtures("late_weights")
def test_stages_without_work_wait_while_the_learner_still_has_some(tiny_model: Path, tmp_path: Path):
    # Everything is generated in the first second; the learner takes twelve, more than any single wait may.
    folder = begin(tiny_model, tmp_path, asynchronous={"max_staleness": 12}, stop={"max_steps": 12, "stall_seconds": 8})
    walk(folder)
    assert len(dones(folder)) == 12


@pytest.mark.spec("K11")
@pytest.mark.usefixtures("late_weights")
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_late_weights_delay_a_run_and_make_nothing_staler(tiny_model: Path, tmp_path: Path, max_staleness: int):
    folder = begin(
        tiny_model, tmp_path, asynchronous={"max_staleness": max_staleness}, stop={"max_steps": 5, "stall_seconds": 30}
    )
    walk(folder)
    found = dones(folder)
    assert len(found) == 5
    assert max(sample.staleness for done in found for sample in done.samples) == max_staleness
    assert sum(done.metrics["sample/dropped_stale_count"] for done in found) == 0


class Forgetful:
    """An engine that never answers one of its requests."""

    def __init__(self, engine: Engine, forgotten: int, times: int) -> None:
        self.engine = engine
        self.forgotten = forgotten
        self.times = times
        self.load = engine.load
        self.next_token_logprobs = engine.next_token_logprobs
        self.pressure, self.dtype, self.behind, self.keeps_deadlines = engine.pressure, engine.dtype, False, False
        self.close = engine.close
        self.asked: Counter[int] = Counter()

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        for request in requests:
            self.asked[request.seed] += 1
            if request.seed == self.forgotten and self.asked[request.seed] <= self.times:
                await asyncio.Event().wait()
        return await self.engine.complete(requests)


@pytest.mark.spec("K13")
@pytest.mark.parametrize(("times", "lost"), [(1, 0), (2, 1)])
def test_a_lost_rollout_holds_up_no_step(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, lost: int
):
    started = Transformers.__call__
    forgotten = derive_seed(1, 2, 3, 0)  # ticket 2, rollout 3

    def start(part: Transformers, model: ModelSection, needs: Needs) -> Forgetful:
        return Forgetful(started(part, model), forgotten, times)

    monkeypatch.setattr(Transformers, "__call__", start)
    folder = begin(
        tiny_model,
        tmp_path,
        asynchronous={"max_staleness": 0},
        engine={"request_timeout_seconds": 2.0},
        step={"groups": 4},
        stop={"max_steps": 1, "stall_seconds": 20},
    )
    walk(folder)
    (done,) = dones(folder)
    assert len(done.samples) == 16 - lost
    groups = [group_from_arrow(folder.groups.read(ticket)) for ticket in range(4)]
    failed = [rollout for group in groups for rollout in group.rollouts if rollout.failed]
    assert [rollout.stop_reason for rollout in failed] == [StopReason.TIMEOUT] * lost
    assert len(done.samples) + len(failed) == 16
    told = [
        folder.event(stream, number) for stream in folder.event_streams() for number in folder.event_numbers(stream)
    ]
    waits = [event.payload for event in told if event.kind == "rollouts_failed"]
    assert [(wait["ticket"], wait["failed"], wait["waited_seconds"] >= 4.0) for wait in waits] == [(2, 1, True)] * lost
    if lost:
        assert scored_from_arrow(folder.scored.read(2)).scores[0].errors[3] == failed[0].error


class Broken:
    """An engine that answers a few calls and then never again."""

    def __init__(self, engine: Engine, answered: int) -> None:
        self.engine = engine
        self.left = answered
        self.load = engine.load
        self.next_token_logprobs = engine.next_token_logprobs
        self.pressure, self.dtype, self.behind, self.keeps_deadlines = engine.pressure, engine.dtype, False, False
        self.close = engine.close

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        self.left -= 1
        if self.left < 0:
            raise EngineError("the device is lost")
        return await self.engine.complete(requests)


def test_an_engine_that_answers_nothing_more_stops_the_run_instead_of_eating_its_prompts(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started = Transformers.__call__
    monkeypatch.setattr(Transformers, "__call__", lambda part, model, needs: Broken(started(part, model), 16))
    folder = begin(tiny_model, tmp_path, asynchronous={"max_staleness": 2}, stop={"max_steps": 30, "stall_seconds": 20})
    with pytest.raises(EngineError, match="answered no request of 8 groups in a row, last: the device is lost"):
        walk(folder)
    assert len(folder.groups.numbers()) < 20


class Outrun(Broken):
    """An engine whose first calls are broken off, since newer versions came."""

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        self.left -= 1
        if self.left >= 0:
            raise StaleInFlight("its version has left the window")
        return await self.engine.complete(requests)


def test_requests_that_were_too_old_are_no_failures_of_the_engine_however_many(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started = Transformers.__call__
    monkeypatch.setattr(Transformers, "__call__", lambda part, model, needs: Outrun(started(part, model), 40))
    folder = begin(tiny_model, tmp_path, asynchronous={"max_staleness": 2}, stop={"max_steps": 2, "stall_seconds": 20})
    walk(folder)
    assert len(dones(folder)) == 2
    groups = [group_from_arrow(folder.groups.read(ticket)) for ticket in folder.groups.numbers()]
    stale = [rollout for group in groups for rollout in group.rollouts if rollout.broken_off]
    assert [rollout.stop_reason for rollout in stale] == [StopReason.STALE_IN_FLIGHT] * 40
    told = [
        folder.event(stream, number) for stream in folder.event_streams() for number in folder.event_numbers(stream)
    ]
    assert [event for event in told if event.kind == "rollouts_failed"] == []


def test_a_stage_that_fails_ends_the_walk_with_its_error(tiny_model: Path, tmp_path: Path):
    folder = begin(tiny_model, tmp_path, stop={"stall_seconds": 0.5})
    with pytest.raises(TimeoutError, match=r"waited \d+ s for"):
        Walk(folder).start("learner").join()
