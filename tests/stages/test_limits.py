"""The four limits of a generator in real runs: each holds new groups, keeps its wait, and says that it binds."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import ModelSection, resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.engines import Engine, Needs
from agrpo.engines.transformers import Transformers
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.records.pace import Limit, Pace
from agrpo.records.pressure import Pressure
from agrpo.records.progress import Hint
from agrpo.runs import prepare
from agrpo.stages import load_watch
from agrpo.stages.recorder import record_once
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged
from tests.stages.walk import LOCKSTEP, Walk, dones, settings, walk

POLL_SECONDS = 0.02


class Pressed:
    """An engine whose servers say how full they are: in turn what is given, and at last that again and again."""

    def __init__(self, engine: Engine, words: Sequence[Pressure | Exception | None]) -> None:
        self.words = list(words)
        self.load, self.complete, self.close = engine.load, engine.complete, engine.close
        self.next_token_logprobs = engine.next_token_logprobs
        self.dtype, self.behind, self.keeps_deadlines = engine.dtype, False, False

    async def pressure(self) -> Pressure | None:
        word = self.words.pop(0) if len(self.words) > 1 else self.words[0]
        if isinstance(word, TimeoutError):
            await asyncio.Event().wait()
        if isinstance(word, Exception):
            raise word
        return word


def press(monkeypatch: pytest.MonkeyPatch, *words: Pressure | Exception | None) -> None:
    started = Transformers.__call__

    def start(part: Transformers, model: ModelSection, needs: Needs) -> Pressed:
        return Pressed(started(part, model), words)

    monkeypatch.setattr(Transformers, "__call__", start)
    monkeypatch.setattr(load_watch, "POLL_SECONDS", POLL_SECONDS)


def said(usage: float, queued: int = 0, *, preemptions: int = 0, retries: int = 0) -> Pressure:
    """By servers whose caches hold eight rollouts of full length."""
    return Pressure(
        kv_usage=usage,
        running=4,
        queued=queued,
        preemptions=preemptions,
        cache_tokens=80,
        max_model_len=10,
        retries=retries,
    )


def begin(model: Path, place: Path, **tables: Any) -> RunFolder:
    place.mkdir(exist_ok=True)
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    return prepare(resolve(values=settings(model, prompts, place, **tables)))


def paces(folder: RunFolder) -> list[Pace]:
    found = [group_from_arrow(folder.groups.read(ticket) or b"").pace for ticket in folder.groups.numbers()]
    return [pace for pace in found if pace is not None]


def measures(folder: RunFolder, prefix: str = "rollout/") -> set[str]:
    """Every one that some step logged."""
    return {name for done in dones(folder) for name in done.metrics if name.startswith(prefix)}


@pytest.mark.spec("A-101", "A-102", "A-309", "A-310", "A-320", "A-321", "A-322", "A-323", "A-324")
def test_rollouts_keep_within_the_cap_and_sql_says_what_servers_said(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = (said(0.7, poll % 3, preemptions=500 + 3 * poll, retries=poll // 2) for poll in range(20_000))
    press(monkeypatch, *words)  # more than there will be polls
    folder = begin(tiny_model, tmp_path, asynchronous={"max_staleness": 8}, stop={"max_steps": 6})
    walk(folder)
    record_once(folder, Database(folder.database))
    assert_sql_says_what_was_logged(folder)
    assert {pace.concurrency_cap for pace in paces(folder)} == {8}
    assert all(4 <= pace.concurrency <= 8 for pace in paces(folder))
    assert any(pace.load_wait_seconds for pace in paces(folder))
    assert all(pace.ceiling_wait_seconds is None for pace in paces(folder))
    told = {"kv_cache_usage_frac", "running_requests", "queued_requests", "preemption_count", "retry_count"}
    assert measures(folder, "rollout/vllm_") == {f"rollout/vllm_{name}" for name in told}
    usage = [done.metrics.get("rollout/vllm_kv_cache_usage_frac", 0.7) for done in dones(folder)]
    assert usage == pytest.approx([0.7] * 6)
    polls = query(folder.database, "SELECT sum(num_polls) AS polls, sum(preemptions) AS rise FROM groups").to_pylist()[
        0
    ]
    assert polls["rise"] == 3 * (polls["polls"] - 1) > 0


@pytest.mark.spec("A-104")
def test_a_full_cache_lowers_the_cap_of_a_run_to_one_rollout_and_the_run_ends_all_the_same(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    press(monkeypatch, said(0.95))
    folder = begin(tiny_model, tmp_path, asynchronous={"max_staleness": 4}, stop={"max_steps": 4})
    walk(folder)
    caps = [pace.concurrency_cap for pace in paces(folder)]
    assert caps == sorted(caps, reverse=True)
    assert {*caps} <= {8, 5, 3, 2, 1}
    assert caps[-1] == 1
    assert "rollout/load_wait_s" in measures(folder)


@pytest.mark.spec("A-106")
@pytest.mark.parametrize("word", [None, TimeoutError(), OSError("an HTML page")], ids=["silent", "slow", "failing"])
def test_servers_that_do_not_say_how_full_they_are_hold_up_nothing(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: Exception | None
):
    press(monkeypatch, word)
    folder = begin(tiny_model, tmp_path, asynchronous={"max_concurrent_rollouts": 64}, stop={"max_steps": 2})
    walk(folder)
    assert {pace.concurrency_cap for pace in paces(folder)} == {64}
    assert {pace.num_polls for pace in paces(folder)} == {0}
    assert measures(folder, "rollout/vllm_") == set()


def without_learner(folder: RunFolder, groups: int) -> None:
    """Leave the run with a first version and leave to begin so many groups."""
    learner = Walk(folder).start("learner")
    learner.until(lambda: bool(folder.versions(0)))
    learner.stop.set()
    learner.threads[0].join(60)
    folder.write_hint(Hint(limit_ticket=groups, dropped=0, floor=0, written_at=time.time()))


@pytest.mark.spec("A-090", "A-318")
def test_a_full_scoring_queue_holds_groups_until_one_is_scored(tiny_model: Path, tmp_path: Path):
    limits = {"max_staleness": 8, "max_concurrent_rollouts": 4, "scoring_queue": 2}
    folder = begin(tiny_model, tmp_path, asynchronous=limits)
    without_learner(folder, groups=4)
    work = Walk(folder).start("generator")

    def beat() -> dict[str, Any]:
        return next(iter(folder.beats(of="generator".__eq__)), {"standing": {}})

    work.until(lambda: beat()["standing"].get("held_by") == Limit.SCORING)
    found, held = beat(), len(folder.groups.numbers())
    assert held in (2, 3), "one may be begun while the second is written"
    assert found["waiting_for"] == f"scores of {held} groups (async.scoring_queue = 2)"
    assert found["standing"].pop("held_seconds") >= 0
    assert found["standing"] == {
        "in_flight": 0,
        "cap": 4,
        "ceiling": 4,
        "unscored": held,
        "queue": 2,
        "held_by": "scoring queue",
    }
    work.start("scorer").until(lambda: len(folder.groups.numbers()) == 4)
    work.stop.set()
    work.join()
    blocks = [pace.score_block_seconds for pace in paces(folder)]
    assert blocks[:held] == [None] * held
    assert blocks[held]


@pytest.mark.spec("A-090", "K11")
def test_in_lockstep_a_scoring_queue_of_one_delays_a_run_and_changes_nothing(tiny_model: Path, tmp_path: Path):
    def weights(queue: int) -> tuple[list[str], set[str]]:
        limits = {"max_staleness": 0, "max_concurrent_rollouts": 4, "scoring_queue": queue}
        tables = {**LOCKSTEP, "asynchronous": limits, "step": {"groups": 4}, "stop": {"max_steps": 3}}
        folder = begin(tiny_model, tmp_path / str(queue), **tables)
        walk(folder)
        return [done.digest for done in dones(folder)], measures(folder)

    narrow, found = weights(1)
    assert "rollout/score_block_s" in found
    assert len(narrow) == 3
    assert narrow == weights(16)[0]


@pytest.mark.spec("A-090")
def test_the_hard_ceiling_has_a_wait_of_its_own(tiny_model: Path, tmp_path: Path):
    limits = {"max_staleness": 8, "max_concurrent_rollouts": 4}
    folder = begin(tiny_model, tmp_path, asynchronous=limits, stop={"max_steps": 4})
    walk(folder)
    assert {pace.concurrency for pace in paces(folder)} == {4}
    assert any(pace.ceiling_wait_seconds for pace in paces(folder))
    assert all(pace.load_wait_seconds is None for pace in paces(folder))
    assert "rollout/ceiling_wait_s" in measures(folder)
