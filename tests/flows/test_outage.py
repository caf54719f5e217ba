"""A run whose Prefect goes away, or never answers: it is trained to its end, and that end is not held up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agrpo.config import resolve
from agrpo.queue.history import done_steps
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from flows import watch
from tests.flows.points import document
from tests.processes import alive, marked, until

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """Set in every process that the test starts."""
    yield from marked(tmp_path, monkeypatch)


def servers(mark: bytes) -> list[int]:
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in alive(mark)}
    return [pid for pid, command in commands.items() if b"server" in command or b"uvicorn" in command]


@pytest.mark.slow
def test_a_run_whose_server_is_killed_ends_well(run_file: Path, mark: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    # Else Prefect tries to tell how the run ended for a minute.
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "0")
    folder = prepare(resolve(run_file, ["stop.max_steps=20"]))
    command = [sys.executable, "-m", "agrpo", "resume", folder.url]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: done_steps(folder) or program.poll() is not None, 120)
    for server in servers(mark):
        os.kill(server, signal.SIGKILL)
    output, _ = program.communicate(timeout=240)
    assert program.returncode == 0, output
    assert len(done_steps(folder)) == 20
    assert output.count("cannot read the state of this flow run: ConnectError") == 1
    assert "the run has ended well, and Prefect cannot be told: ConnectError" in output
    assert alive(mark) == []


def test_an_api_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid4()))
    monkeypatch.setattr(watch, "STATE_SECONDS", 0.01)
    monkeypatch.setattr(watch, "LAST_WORDS_SECONDS", 0.1)
    folder = RunFolder.create(str(tmp_path / "run"), document())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}), watch.Watch(folder, threading.Event()) as watching:
            asked, _ = silent.accept()
        assert watching._thread.is_alive(), "it waited for the answer"
        asked.close()
    watching._thread.join(watch.REQUEST_SECONDS)
    assert [record.message.partition(":")[0] for record in caplog.records] == ["cannot read the state of this flow run"]
