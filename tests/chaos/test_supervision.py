"""A stage that dies or stands still is started again, and one that does so too often ends the run soon, loud and whole."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.queue.history import newest_done
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Event
from tests.chaos.balance import balance
from tests.chaos.running import Running
from tests.chaos.tiny import begin
from tests.processes import alive, marked, until

UP_SECONDS = 300.0
"""On a machine with little to spare, for everything that takes as long as it takes."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes through Linux' /proc"),
]


@pytest.fixture(autouse=True)
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """Set in every process that the test starts."""
    yield from marked(tmp_path, monkeypatch)


@pytest.fixture
def started(api: str, tiny_model: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a tiny run under these settings of `[supervision]`."""
    runs: list[Running] = []

    def start(steps: int = 6, **supervision: Any) -> Running:
        rule = {"restarts": 3, "first_pause_seconds": 0.2, **supervision}
        workers = {"generators": 1, "scorers": 1}
        folder = begin(tiny_model, tmp_path, "asynchronous", steps=steps, supervision=rule, workers=workers)
        runs.append(Running(folder, tmp_path / "flows.log"))
        runs[-1].go_on()
        return runs[-1]

    yield start
    for running in runs:
        running.__exit__()


def step(running: Running) -> int:
    done = newest_done(running.folder)
    return 0 if done is None else done.step


def strike(running: Running, stage: str, number: signal.Signals, *, but: int = 0) -> int:
    """Signal the stage's process as soon as there is one, other than `but`. Its number."""
    until(lambda: running.stages().get(stage, but) != but, UP_SECONDS)
    pid = running.stages()[stage]
    os.kill(pid, number)
    return pid


def ended(running: Running, seconds: float = UP_SECONDS) -> int:
    """Exit code of the flow."""
    assert running.flow is not None
    try:
        return running.flow.wait(seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"did not end within {seconds} s:\n{running.told()}") from None


def events(folder: RunFolder) -> list[Event]:
    """What supervisors wrote."""
    streams = [name for name in folder.event_streams() if name.startswith("supervisor-")]
    found = [folder.event(name, number) for name in streams for number in folder.event_numbers(name)]
    return [event for event in found if event is not None]


def whole(folder: RunFolder, steps: int) -> None:
    """The run has all its steps; every ticket below the last consumed one is consumed once or was never done."""
    history = balance(folder)
    assert [plan.step for plan, _ in history] == list(range(1, steps + 1))
    consumed = {ticket for plan, _ in history for ticket in plan.consumed}
    hint = folder.hint()
    assert hint is not None
    assert set(range(hint.floor)) <= consumed


@pytest.mark.spec("K14")
def test_each_stage_killed_once_runs_again_and_no_prompt_is_lost_or_doubled(started: Callable[..., Running]) -> None:
    running = started(steps=8, restarts=1)
    for after, stage in enumerate(("generator", "scorer", "learner"), 1):
        until(lambda after=after: step(running) >= after, UP_SECONDS)
        strike(running, stage, signal.SIGKILL)
    assert ended(running) == 0, running.told()
    whole(running.folder, 8)
    restarted = [event.payload["stage"] for event in events(running.folder) if event.kind == "stage_restarted"]
    assert sorted(restarted) == ["generator", "learner", "scorer"]  # a short pause may overtake a long one


@pytest.mark.spec("K14")
@pytest.mark.parametrize("stage", ["generator", "scorer", "learner"])
def test_a_stage_that_dies_too_often_ends_the_run_soon_with_its_last_words_and_a_run_that_goes_on(
    started: Callable[..., Running], mark: bytes, stage: str
) -> None:
    running = started(restarts=2)
    until(lambda: step(running) >= 1, UP_SECONDS)
    pid = 0
    for _ in range(3):
        pid = strike(running, stage, signal.SIGKILL, but=pid)
    died = time.monotonic()
    assert ended(running, 30) == 1
    took = time.monotonic() - died
    assert took < 15
    assert f"error: stage {stage} was killed by SIGKILL: last output: " in running.told()
    assert "; it was started again 2 times, the limit (supervision.restarts)" in running.told()
    until(lambda: not alive(mark), 10)
    running.go_on()
    assert ended(running) == 0, running.told()
    whole(running.folder, 6)


def test_a_stage_that_was_stopped_is_named_and_started_again(started: Callable[..., Running]) -> None:
    running = started(steps=8, restarts=20, stall_seconds=20)
    until(lambda: step(running) >= 1, UP_SECONDS)
    strike(running, "generator", signal.SIGSTOP)
    assert ended(running) == 0, running.told()
    whole(running.folder, 8)
    stalled = [event.payload["reason"] for event in events(running.folder) if event.kind == "stage_stalled"]
    assert any(told.startswith("stage generator said nothing for ") and "its last word: " in told for told in stalled)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_machine_that_is_taken_away_loses_nothing(
    started: Callable[..., Running], mark: bytes, number: signal.Signals
) -> None:
    running = started()
    until(lambda: step(running) >= 2, UP_SECONDS)
    assert running.flow is not None
    running.flow.send_signal(number)
    assert ended(running, 20) == (143 if number == signal.SIGTERM else -number)
    before = balance(running.folder)
    running.go_on()
    assert ended(running) == 0, running.told()
    whole(running.folder, 6)
    after = balance(running.folder)
    assert [done.digest for _, done in after][: len(before)] == [done.digest for _, done in before]


def test_two_at_once_never_fight(started: Callable[..., Running], tmp_path: Path) -> None:
    running = started(steps=400)
    until(lambda: step(running) >= 1, UP_SECONDS)
    other = Running(running.folder, tmp_path / "other.log")
    other.go_on()
    assert ended(other) == 1
    assert f"error: {running.folder.url} is being trained by process " in other.told()
    before = step(running)
    until(lambda: step(running) > before, UP_SECONDS)
    assert running.folder.attempts() == [0]
