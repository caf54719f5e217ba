"""The live view beside a run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from agrpo.errors import RecordError
from agrpo.instruments.live.looking import State
from agrpo.instruments.live.showing import LiveView
from agrpo.records.progress import Hint
from tests.instruments.watched import going_on

DEADLINE_SECONDS = 60


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal that is written to memory."""
    monkeypatch.setenv("TERM", "xterm")
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=24, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_is_printed_meanwhile_stands_above_the_view(tmp_path: Path, terminal: Console):
    with LiveView(going_on(tmp_path / "run"), console=terminal):
        print("warning: scorer: something odd")
    before, _, after = written(terminal).partition("warning: scorer: something odd")
    assert before
    assert "step 1/4" in after


def test_the_last_picture_of_a_finished_run_shows_no_stage_at_work(tmp_path: Path, terminal: Console):
    folder = going_on(tmp_path / "run")
    folder.beat("learner", None)
    with LiveView(folder, console=terminal) as view:
        folder.write_hint(Hint(limit_ticket=9, dropped=0, floor=1, finished=True))
    assert view.look is not None
    assert (view.look.state, view.look.ended) == (State.FINISHED, True)
    assert "learner" not in written(terminal).rpartition("step 1/4")[2]


def test_the_view_of_a_resume_waits_for_stages_to_speak_again(tmp_path: Path, terminal: Console):
    folder = going_on(tmp_path / "run")
    folder.beat("learner", None)
    with LiveView(folder, since=folder.beats()[0]["at"] + 1, console=terminal) as view:
        pass
    assert view.look is not None
    assert not any(stage.spoken for stage in view.look.stages)


def test_a_view_that_fails_ends_alone_and_says_why(tmp_path: Path, terminal: Console):
    folder = going_on(tmp_path / "run")
    folder.filesystem.put("steps/000000/00000002.done.json", b"torn")
    with LiveView(folder, console=terminal) as view:
        assert view.ended.wait(DEADLINE_SECONDS)
    assert isinstance(view.error, RecordError)
