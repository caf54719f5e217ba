"""`agrpo watch`: in a pipe, in a terminal, and what ends it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.instruments.history import recorded_history
from agrpo.metrics.line import progress_line
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from tests.instruments.watched import going_on
from tests.stages.walk import Walk, settings

WATCH = [sys.executable, "-m", "agrpo", "watch"]


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run of two steps, called `small`, and its database."""
    place = tmp_path_factory.mktemp("watch")
    prompts = place / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1 ="}]}))
    tree = settings(tiny_model, prompts, place, stop={"max_steps": 2})
    folder = prepare(resolve(values=tree), folder=f"{place}/small")
    Walk(folder).start("generator", "scorer", "learner").join()
    recorder = Walk(folder).start("recorder")
    recorder.stop.set()
    recorder.join()
    return folder


def test_a_finished_run_is_told_step_by_step_into_a_pipe_and_ends_the_watching(finished: RunFolder):
    told = subprocess.run([*WATCH, finished.url], capture_output=True, text=True, check=False, timeout=60)
    steps = [progress_line(point.step, point.metrics, 2) for point in recorded_history(finished)]
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines() == [*steps, "finished after step 2"]
    assert [step[:8] for step in steps] == ["step 1/2", "step 2/2"]


def test_a_finished_run_is_shown_in_a_terminal_and_ends_the_watching(finished: RunFolder):
    shown = in_terminal([*WATCH, finished.url])
    for word in ("small", "finished", "step 2/2", "100 %", "reward", "entropy", "staleness", "finished after step 2"):
        assert word in shown
    assert "generator" not in shown.rpartition("100 %")[2]


def test_plain_lines_are_to_be_had_in_a_terminal_too(finished: RunFolder):
    lines = in_terminal([*WATCH, "--plain", finished.url]).splitlines()
    assert [line[:8] for line in lines] == ["step 1/2", "step 2/2", "finished"]


def test_ctrl_c_ends_the_watching_and_says_that_the_run_goes_on(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    watching = subprocess.Popen([*WATCH, folder.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("step 1/4  reward 0.500")
    watching.send_signal(signal.SIGINT)
    out, errors = watching.communicate(timeout=30)
    assert (watching.returncode, errors) == (0, "")
    # A line about the stall of this old run may come before.
    assert out.splitlines()[-1].startswith("no longer watching; the run goes on.")


@pytest.mark.slow
def test_an_unfinished_run_that_nobody_works_on_is_told_with_how_to_go_on(tmp_path: Path):
    folder = going_on(tmp_path / "run")
    beat = {"stage": "learner", "waiting_for": None, "waited_seconds": 0.0, "at": 0.0}
    folder.filesystem.put("beat/learner.json", json.dumps(beat).encode())
    told = subprocess.run([*WATCH, folder.url], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.splitlines()[-1].startswith("unfinished, and no stage has spoken for 60 s; `agrpo resume /")


@pytest.mark.parametrize("command", ["watch", "train", "resume", "quickstart"])
def test_help_tells_how_to_have_plain_lines(command: str):
    told = subprocess.run(
        [sys.executable, "-m", "agrpo", command, "--help"], capture_output=True, text=True, check=True
    )
    assert "--plain" in told.stdout


def in_terminal(command: list[str]) -> str:
    """What a command writes to a terminal of 80 x 24."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as program:
        os.close(theirs)
        written = bytearray()
        while chunk := _read(ours):
            written += chunk
        os.close(ours)
        assert program.wait(60) == 0, written.decode()
    return written.decode()


def _read(terminal: int) -> bytes:
    """Linux says with an error that nobody holds the other end any more."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
