"""No process outlives its call, its template, its runner or its scorer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agrpo.rewards.sandbox import RewardRunner
from tests.rewards.worlds import HANG_SECONDS, all_ended, descendants, group_of, lives, noted, run, score, section_of
from tests.rewards.worlds import with_runner as during

SCORER = """
import asyncio, sys
from agrpo.rewards.sandbox import RewardRunner
from tests.rewards.worlds import group_of, section_of
asyncio.run(RewardRunner(section_of("hangs_with_a_child", timeout_seconds=600.0)).score(group_of("a", note=sys.argv[1])))
"""


async def until_noted(note: Path, count: int) -> list[int]:
    deadline = time.monotonic() + HANG_SECONDS
    while not note.exists() or len(noted(note)) < count:
        assert time.monotonic() < deadline, "the judge never came to write its note"
        await asyncio.sleep(0.01)
    return noted(note)


@pytest.mark.spec("K21")
@pytest.mark.parametrize("judge", ["leaves_a_child", "leaves_a_daemon"])
def test_what_a_judge_started_ends_with_its_call(judge: str, tmp_path: Path) -> None:
    note = tmp_path / "note"

    async def work(runner: RewardRunner) -> bool:
        assert (await runner.score(group_of("a", note=str(note)))).values == [1.0]
        return lives(noted(note)[0])

    assert run(during(section_of(judge), work)) is False


def test_what_a_hanging_judge_started_is_killed_with_it(tmp_path: Path) -> None:
    note = tmp_path / "note"
    (scored,) = score(section_of("hangs_with_a_child", timeout_seconds=0.3), group_of("a", note=str(note)))
    assert scored.values == [None]
    assert len(noted(note)) == 2 and not any(lives(pid) for pid in noted(note))


def test_a_cancelled_call_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "note"

    async def work(runner: RewardRunner) -> bool:
        call = asyncio.create_task(runner.score(group_of("a", note=str(note))))
        started = await until_noted(note, 2)
        call.cancel()
        return await asyncio.to_thread(all_ended, started)

    assert run(during(section_of("hangs_with_a_child", timeout_seconds=600.0), work))


def test_closing_a_runner_ends_a_call_that_hangs(tmp_path: Path) -> None:
    note = tmp_path / "note"

    async def work(runner: RewardRunner) -> list[int]:
        call = asyncio.create_task(runner.score(group_of("a", note=str(note))))
        started = await until_noted(note, 2)
        await runner.close()
        await asyncio.gather(call, return_exceptions=True)
        return started

    started = run(during(section_of("hangs_with_a_child", timeout_seconds=600.0), work))
    assert not any(lives(pid) for pid in started)
    assert descendants(os.getpid()) == set()


def test_a_template_killed_during_a_call_is_restarted_and_asked_again(tmp_path: Path) -> None:
    note = tmp_path / "note"
    group = group_of("a", "bbb", note=str(note))
    first, second = score(section_of("kills_its_template_once"), group, group)
    assert first.values == second.values == [1.0, 3.0]
    assert first.errors == [None, None]
    assert not any(lives(pid) for pid in noted(note))


def test_a_template_killed_between_calls_is_restarted() -> None:
    async def work(runner: RewardRunner) -> list[float | None]:
        await runner.score(group_of("a"))
        (template,) = descendants(os.getpid())
        os.kill(template, signal.SIGKILL)
        return (await runner.score(group_of("a", "bb"))).values

    assert run(during(section_of("length"), work)) == [1.0, 2.0]


def test_a_judge_that_always_kills_its_template_gets_no_value() -> None:
    (scored,) = score(section_of("always_kills_its_template"), group_of("a"))
    assert scored.values == [None]
    assert scored.errors == ["its process was killed by signal 9, twice in this call"]


def test_a_killed_scorer_leaves_no_process(tmp_path: Path) -> None:
    note = tmp_path / "note"
    scorer = subprocess.Popen([sys.executable, "-c", SCORER, str(note)], env={**os.environ, "PYTHONPATH": os.getcwd()})
    try:
        asyncio.run(until_noted(note, 2))
        started = descendants(scorer.pid)
        assert len(started) == 3 and set(noted(note)) < started
    finally:
        scorer.kill()
        scorer.wait()
    assert all_ended(started)
