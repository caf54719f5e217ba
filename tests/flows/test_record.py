"""What a supervisor writes of its stages into the run's folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agrpo.config import SupervisionSection
from agrpo.errors import StageFailed
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Event
from agrpo.stages.process import Supervisor
from agrpo.stages.supervision import Supervision
from flows.record import SupervisorEvents
from tests.flows.points import document

EXAMPLE = "tests.stages.stage_examples"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path / "run"), document())


def supervise(folder: RunFolder, example: str, restarts: int) -> list[Event]:
    """Run one stage to its end; what was written of it."""
    rule = SupervisionSection(restarts=restarts, first_pause_seconds=0)
    with Supervisor(folder.url, folder.local / "logs", grace_seconds=1.0) as supervisor:
        supervision = Supervision(supervisor, rule, on_event=SupervisorEvents(folder))
        try:
            supervision.run(EXAMPLE, threading.Event(), env={"EXAMPLE": example})
        except StageFailed as failure:
            assert failure  # told by its event
    [stream] = folder.event_streams()
    assert stream.startswith("supervisor-")
    return [event for number in folder.event_numbers(stream) if (event := folder.event(stream, number)) is not None]


def test_each_start_of_a_stage_is_recorded_with_what_ended_the_one_before(folder: RunFolder) -> None:
    first, second, third = supervise(folder, "die_twice", restarts=2)
    assert [event.kind for event in (first, second, third)] == ["stage_started", "stage_restarted", "stage_restarted"]
    assert {event.payload["stage"] for event in (first, second, third)} == {EXAMPLE}
    assert len({(event.payload["pid"], event.payload["incarnation"]) for event in (first, second, third)}) == 3
    assert "reason" not in first.payload
    assert second.payload["reason"].startswith(f"stage {EXAMPLE} was killed by SIGKILL")
    assert first.payload["incarnation"] in second.payload["reason"]


def test_a_stage_that_fails_is_recorded_with_its_error(folder: RunFolder) -> None:
    started, failed = supervise(folder, "fail", restarts=2)
    assert (started.kind, failed.kind) == ("stage_started", "stage_failed")
    assert failed.payload["pid"] == started.payload["pid"]
    assert "ModelError: the model has 3 heads and 2 are needed" in failed.payload["reason"]


def test_two_supervisors_of_one_run_have_streams_of_their_own(folder: RunFolder) -> None:
    for _ in range(2):
        SupervisorEvents(folder)("stage_started", {"stage": "learner", "pid": 1})
    assert [folder.event_numbers(stream) for stream in folder.event_streams()] == [[0], [0]]


def test_an_event_that_cannot_be_written_is_said_and_ends_nothing(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    Path(folder.url, "events").write_text("a file where the folder of streams should be")
    SupervisorEvents(folder)("stage_started", {"stage": "learner", "pid": 1})
    [record] = caplog.records
    assert record.message.startswith("stage_started {'stage': 'learner', 'pid': 1} is not recorded: ")
