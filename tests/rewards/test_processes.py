"""No process outlives its call, its template, its runner or its scorer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agrpo.config import RewardSection
from agrpo.errors import RewardError
from agrpo.rewards.sandbox import RewardRunner, calls
from agrpo.rewards.sandbox.process import Housing
from tests.rewards.worlds import HANG_SECONDS, all_ended, descendants, group_of, lives, noted, run, score, section_of
from tests.rewards.worlds import with_runner as during

SCORER = """
import asyncio, sys
from agrpo.config import RewardSection
from agrpo.rewards.sandbox import RewardRunner
from tests.rewards.worlds import group_of
runner = RewardRunner(RewardSection(name=sys.argv[1], timeout_seconds=600.0))
asyncio.run(runner.score(group_of("a", note=sys.argv[2])))
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
    (scored,) = score(section_of("hangs_with_a_child", timeout_seconds=1.5), group_of("a", note=str(note)))
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

    others = descendants(os.getpid())
    started = run(during(section_of("hangs_with_a_child", timeout_seconds=600.0), work))
    assert not any(lives(pid) for pid in started)
    assert descendants(os.getpid()) <= others


def test_a_template_killed_during_a_call_is_restarted_and_asked_again(tmp_path: Path) -> None:
    note = tmp_path / "note"
    group = group_of("a", "bbb", note=str(note))
    first, second = score(section_of("kills_its_template_once"), group, group)
    assert first.values == second.values == [1.0, 3.0]
    assert first.errors == [None, None]
    assert not any(lives(pid) for pid in noted(note))


def test_a_template_killed_between_calls_is_restarted() -> None:
    others = descendants(os.getpid())

    async def work(runner: RewardRunner) -> list[float | None]:
        await runner.score(group_of("a"))
        (template,) = descendants(os.getpid()) - others
        os.kill(template, signal.SIGKILL)
        return (await runner.score(group_of("a", "bb"))).values

    assert run(during(section_of("length"), work)) == [1.0, 2.0]


def test_a_judge_that_always_kills_its_template_gets_no_value() -> None:
    (scored,) = score(section_of("always_kills_its_template"), group_of("a"))
    assert scored.values == [None]
    assert scored.errors == ["its process was killed by signal 9, twice in this call"]


@contextmanager
def scorer_of(name: str, note: Path) -> Iterator[int]:
    """The process number of a scorer whose reward writes `note` and then hangs."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "HANGING_NOTE": str(note)}
    scorer = subprocess.Popen([sys.executable, "-c", SCORER, name, str(note)], env=environment)
    try:
        yield scorer.pid
    finally:
        scorer.kill()
        scorer.wait()


def test_a_killed_scorer_leaves_no_process(tmp_path: Path) -> None:
    with scorer_of("tests.rewards.judges:hangs_with_a_child", tmp_path / "note") as scorer:
        asyncio.run(until_noted(tmp_path / "note", 2))
        started = descendants(scorer)
        assert len(started) == 3 and set(noted(tmp_path / "note")) < started
    assert all_ended(started)


def test_a_scorer_killed_while_its_reward_is_imported_leaves_no_process(tmp_path: Path) -> None:
    with scorer_of("tests.rewards.hanging:judge", tmp_path / "note") as scorer:
        (template,) = asyncio.run(until_noted(tmp_path / "note", 1))
        assert descendants(scorer) == {template}
    assert all_ended({template})


def test_a_call_ends_when_its_template_and_its_scorer_are_killed_at_once(tmp_path: Path) -> None:
    with scorer_of("tests.rewards.judges:hangs_with_a_child", tmp_path / "note") as scorer:
        child, judge = asyncio.run(until_noted(tmp_path / "note", 2))
        (template,) = descendants(scorer) - {child, judge}
        os.kill(scorer, signal.SIGSTOP)
        os.kill(template, signal.SIGKILL)
    assert all_ended({judge})
    os.kill(child, signal.SIGKILL)  # nobody is left who knew of it


@pytest.mark.spec("K21")
def test_an_import_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    others = descendants(os.getpid())
    monkeypatch.setattr(calls, "TEMPLATE", Housing(load_seconds=1.0))
    with pytest.raises(RewardError, match="cannot be imported: its process did not answer within 1 s"):
        score(RewardSection(name="tests.rewards.hanging:judge"), group_of("a"))
    assert descendants(os.getpid()) <= others


def test_a_judge_that_writes_into_what_is_open_spoils_only_its_own_answer() -> None:
    first, second = score(section_of("scribbles", timeout_seconds=1.0), group_of("a", "bad", "ccc"), group_of("a"))
    assert first.values == [1.0, None, 3.0]
    assert second.values == [1.0]
