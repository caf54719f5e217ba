"""However a run's supervisor ends, ten seconds later nothing it started is alive, and the next run starts at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.stages.reaper import LOOK_SECONDS
from tests.processes import alive, marked, until

SUPERVISE = Path(__file__).parent / "supervise.py"
ROOT = SUPERVISE.parent.parent.parent
STUBBORN = ["hold_a_port", "ignore_sigterm", "hold_the_interpreter", "have_children", "work"]
"""The last one is stopped by the test."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes through Linux' /proc")


@pytest.fixture(autouse=True)
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """An environment variable that every process started by the test inherits, whoever its parent becomes."""
    yield from marked(tmp_path, monkeypatch)


def supervise(folder: Path, *examples: str, **env: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, str(SUPERVISE), str(folder), *examples]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def started(program: subprocess.Popen[str], folder: Path, count: int) -> list[int]:
    """The stages' processes, once each of them is at work."""
    assert program.stdout is not None
    pids = [int(program.stdout.readline()) for _ in range(count)]
    until(lambda: len(list(folder.glob("ready *"))) == count, 20)
    return pids


def ended(program: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = program.communicate(timeout=10)
    return program.returncode, errors


@pytest.mark.spec("K18")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_supervisor_that_is_killed_takes_everything_with_it(
    tmp_path: Path, mark: bytes, number: int, code: int
) -> None:
    program = supervise(tmp_path, *STUBBORN)
    pids = started(program, tmp_path, len(STUBBORN))
    os.kill(pids[-1], signal.SIGSTOP)
    assert len(alive(mark)) == 1 + 1 + len(STUBBORN) + 2
    began = time.monotonic()
    program.send_signal(number)
    assert ended(program)[0] == code
    until(lambda: not alive(mark), 10 - (time.monotonic() - began))
    socket.create_server(("127.0.0.1", int((tmp_path / "port").read_text()))).close()
    assert ended(supervise(tmp_path, "finish")) == (0, "")


@pytest.mark.spec("K18")
def test_one_stage_that_fails_ends_all_and_its_error_is_shown(tmp_path: Path, mark: bytes) -> None:
    code, errors = ended(supervise(tmp_path, "fail", *STUBBORN))
    assert code == 1
    assert "ended with exit code 1: ModelError: the model has 3 heads and 2 are needed" in errors.splitlines()[-1]
    assert alive(mark) == []


@pytest.mark.spec("K18")
def test_after_a_normal_end_nothing_is_left(tmp_path: Path, mark: bytes) -> None:
    assert ended(supervise(tmp_path, "finish", "finish", "leave_children")) == (0, "")
    assert alive(mark) == []


def test_a_fork_that_holds_the_pipes_open_does_not_keep_the_stages_alive(tmp_path: Path, mark: bytes) -> None:
    program = supervise(tmp_path, "work", "hold_the_interpreter", FORK="1")
    started(program, tmp_path, 2)
    program.kill()
    ended(program)
    until(lambda: len(alive(mark)) == 1, 10)


def test_a_reaper_that_was_killed_is_replaced(tmp_path: Path, mark: bytes) -> None:
    program = supervise(tmp_path, "kill_the_reaper", "work", "hold_the_interpreter")
    pids = started(program, tmp_path, 3)
    until(lambda: any(b"reaper.py" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in alive(mark)), 10)
    os.kill(pids[1], signal.SIGSTOP)
    program.kill()
    ended(program)
    until(lambda: not alive(mark), 10)


@pytest.mark.spec("K18")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_descendant_in_a_session_of_its_own_is_ended_too(tmp_path: Path, mark: bytes, number: int) -> None:
    program = supervise(tmp_path, "have_a_child_in_a_session_of_its_own")
    started(program, tmp_path, 1)
    time.sleep(3 * LOOK_SECONDS)  # by then the reaper knows of it
    program.send_signal(number)
    ended(program)
    until(lambda: not alive(mark), 10)
