"""A supervisor's stages: what they are given, what is told of their end, and that stopping them is bounded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agrpo.errors import StageFailed, Stopped
from agrpo.stages import KINDS
from agrpo.stages.output import LogFile
from agrpo.stages.process import Supervisor
from agrpo.stages.report import ErrorReport, receive, send
from agrpo.stages.stage_process import StageProcess

EXAMPLE = "tests.stages.stage_examples"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(str(tmp_path), tmp_path / "logs", grace_seconds=1.0) as entered:
        yield entered


def start(supervisor: Supervisor, example: str, **env: str) -> StageProcess:
    return supervisor.start(EXAMPLE, {"EXAMPLE": example, **env})


def until(fact: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def ready(stage: StageProcess, folder: Path) -> None:
    until((folder / f"ready {stage.incarnation}").exists)


def living(group: int) -> list[int]:
    """Processes of a group, without the dead that nobody has reaped yet."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def test_a_stage_that_returns_has_finished_and_its_log_has_the_lines(supervisor: Supervisor) -> None:
    stage = start(supervisor, "finish")
    supervisor.wait(stage)
    assert stage.exit_code == 0
    lines = stage.log_path.read_text().splitlines()
    assert lines[0] == "all is done"
    assert lines[1].endswith(f"INFO agrpo.stages {stage.incarnation} has finished")


def test_the_message_of_a_stage_that_raises_is_told_in_one_line(supervisor: Supervisor) -> None:
    stage = start(supervisor, "fail")
    with pytest.raises(StageFailed) as failure:
        supervisor.wait(stage)
    assert str(failure.value) == (
        f"stage {EXAMPLE} ended with exit code 1: ModelError: the model has 3 heads and 2 are needed "
        f"(all it printed: {stage.log_path})"
    )
    assert stage.log_path.read_text().splitlines()[-1] == "error: ModelError: the model has 3 heads and 2 are needed"


def test_an_unforeseen_error_leaves_its_traceback_in_the_log(supervisor: Supervisor) -> None:
    stage = start(supervisor, "stumble")
    with pytest.raises(StageFailed, match="exit code 1: KeyError: 'los'"):
        supervisor.wait(stage)
    text = stage.log_path.read_text()
    assert "Traceback (most recent call last)" in text
    assert text.endswith("error: KeyError: 'los'\n")


@pytest.mark.parametrize(("example", "told"), [("leave", "SystemExit: 0"), ("stop_unasked", "Stopped: nobody asked")])
def test_leaving_early_is_no_success(supervisor: Supervisor, example: str, told: str) -> None:
    with pytest.raises(StageFailed, match=f"exit code 1: {told}"):
        supervisor.wait(start(supervisor, example))


def test_a_killed_stage_is_told_by_its_signal_and_its_last_lines(supervisor: Supervisor) -> None:
    with pytest.raises(StageFailed, match=r"was killed by SIGKILL: last output: two \| three \| four \(all"):
        supervisor.wait(start(supervisor, "kill_itself"))


def test_an_unknown_stage_names_the_known_ones(supervisor: Supervisor) -> None:
    with pytest.raises(StageFailed, match=f'no stage "lerner"; expected {", ".join(KINDS)}, or'):
        supervisor.wait(supervisor.start("lerner"))


def test_a_module_without_run_is_no_stage(supervisor: Supervisor) -> None:
    with pytest.raises(StageFailed, match=r"agrpo.errors is no stage; it needs run\(context: StageContext\)"):
        supervisor.wait(supervisor.start("agrpo.errors"))


def test_a_stage_asked_to_stop_puts_its_affairs_in_order(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "work")
    ready(stage, tmp_path)
    stop = threading.Event()
    stop.set()
    supervisor.wait(stage, stop)
    assert stage.exit_code == 0
    assert (tmp_path / "in order").exists()


@pytest.mark.parametrize(
    ("example", "told"), [("linger_in_order", []), ("fail_and_linger", ["failed: ModelError: the model has 3 heads"])]
)
def test_of_a_stage_killed_while_its_process_ends_only_its_failure_is_told(
    supervisor: Supervisor, tmp_path: Path, caplog: pytest.LogCaptureFixture, example: str, told: list[str]
) -> None:
    stage = start(supervisor, example)
    ready(stage, tmp_path)
    stop = threading.Event()
    stop.set()
    supervisor.wait(stage, stop)
    assert stage.exit_code == -signal.SIGKILL
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == len(told)
    assert all(
        line.startswith(f"told to stop, but stage {EXAMPLE} {one}") for line, one in zip(warned, told, strict=True)
    )


def test_a_stage_asked_to_finish_takes_its_time(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "work_on", EXAMPLE_SECONDS="1.5")
    ready(stage, tmp_path)
    finish = threading.Event()
    finish.set()
    supervisor.wait(stage, threading.Event(), finish=finish)
    assert stage.exit_code == 0


def test_a_stage_that_fails_while_it_finishes_has_failed(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "work_on", EXAMPLE_SECONDS="0")
    ready(stage, tmp_path)
    finish = threading.Event()
    finish.set()
    with pytest.raises(StageFailed, match="the last work failed"):
        supervisor.wait(stage, finish=finish)


def test_a_stage_that_takes_its_time_can_still_be_stopped(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "work_on", EXAMPLE_SECONDS="600")
    ready(stage, tmp_path)
    events = threading.Event(), threading.Event()
    for event in events:
        event.set()
    supervisor.wait(stage, events[0], finish=events[1])
    assert stage.exit_code == -signal.SIGKILL


def test_a_stage_that_outlasts_the_others_is_stopped_when_they_have_ended(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """What they write last is for it to record."""
    stop, finish = threading.Event(), threading.Event()
    last, other = start(supervisor, "work"), start(supervisor, "work_on", EXAMPLE_SECONDS="0.5")
    for stage in (last, other):
        ready(stage, tmp_path)
    waiting = threading.Thread(target=supervisor.wait, args=(last, stop), kwargs={"finish": finish})
    waiting.start()
    stop.set()
    supervisor.wait(other, stop)
    assert other.ended and not last.asked
    finish.set()
    waiting.join(10)
    assert last.exit_code == 0


def test_of_all_stages_those_that_outlast_the_others_are_stopped_last(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, *others = [start(supervisor, "work") for _ in range(3)]
    waiting = threading.Thread(target=supervisor.wait, args=(last,), kwargs={"finish": threading.Event()})
    waiting.start()
    until(lambda: last.outlasts)
    stop, stopped = supervisor.stop, list[StageProcess]()

    def stop_one(stage: StageProcess) -> None:
        assert stage is not last or all(other.ended for other in others)
        stop(stage)
        stopped.append(stage)

    monkeypatch.setattr(supervisor, "stop", stop_one)
    supervisor.stop_all()
    waiting.join(10)
    assert stopped[2:] == [last] and last.exit_code == 0


def test_a_stage_asked_before_it_can_hear_hears_it_later(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "work")
    finish = threading.Event()
    finish.set()
    supervisor.wait(stage, finish=finish)
    assert stage.exit_code == 0
    assert (tmp_path / "in order").exists()


def test_a_stage_hears_amid_a_long_call_that_it_is_asked_to_stop(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "compute_long")
    ready(stage, tmp_path)
    supervisor.stop(stage)
    assert stage.output.last_lines() == ["heard amid the call"]


def test_many_may_ask_a_stage_to_stop_and_it_is_asked_once(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "work")
    ready(stage, tmp_path)
    askers = [threading.Thread(target=supervisor.stop, args=(stage,)) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert stage.exit_code == 0


def test_a_second_sigterm_ends_a_stage_that_goes_on(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "work_for_ever")
    ready(stage, tmp_path)
    os.kill(stage.pid, signal.SIGINT)
    os.kill(stage.pid, signal.SIGTERM)
    until((tmp_path / "asked").exists)
    os.kill(stage.pid, signal.SIGTERM)
    with pytest.raises(StageFailed, match="exit code 143"):
        supervisor.wait(stage)


def test_a_stage_that_somebody_else_ends_has_not_finished(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = start(supervisor, "work")
    ready(stage, tmp_path)
    os.kill(stage.pid, signal.SIGTERM)
    with pytest.raises(StageFailed, match="exit code 0: somebody else than its supervisor sent it SIGTERM"):
        supervisor.wait(stage)
    assert (tmp_path / "in order").exists()


@pytest.mark.spec("K18")
def test_deaf_and_stopped_stages_end_together_within_the_grace_and_two_seconds(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    stages = [start(supervisor, example) for example in ("ignore_sigterm", "hold_the_interpreter", "work", "work")]
    for stage in stages:
        ready(stage, tmp_path)
    os.kill(stages[3].pid, signal.SIGSTOP)
    began = time.monotonic()
    supervisor.stop_all()
    assert time.monotonic() - began < 3.0
    assert [stage.exit_code for stage in stages] == [-9, -9, 0, 0]


@pytest.mark.spec("K18")
def test_children_do_not_outlive_a_stage_that_ended_by_itself(supervisor: Supervisor) -> None:
    stage = start(supervisor, "leave_children")
    supervisor.wait(stage)
    assert stage.exit_code == 0
    assert living(stage.pid) == []


def test_a_thread_left_behind_does_not_keep_a_stage_from_ending(supervisor: Supervisor) -> None:
    stage = start(supervisor, "leave_a_thread")
    supervisor.wait(stage)
    assert stage.exit_code == 0
    assert "threads still running: straggler" in stage.output.last_lines()[-1]


def test_no_stage_starts_once_the_supervisor_has_ended(tmp_path: Path) -> None:
    with Supervisor(str(tmp_path), tmp_path) as supervisor:
        pass
    with pytest.raises(Stopped, match="not started"):
        supervisor.start(EXAMPLE)


def test_a_stage_finds_what_its_supervisor_finds(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    supervisor.wait(start(supervisor, "show_environment", OMP_NUM_THREADS="3"))
    seen = json.loads((tmp_path / "environment.json").read_text())
    assert seen["path"][0] == str(tmp_path)
    assert not any(part in seen["PYTHONPATH"] for part in ("site-packages", "lib-dynload"))
    assert (seen["PYTHONUNBUFFERED"], seen["OMP_NUM_THREADS"], seen["cwd"]) == ("1", "3", os.getcwd())
    assert seen["AGRPO_SUPERVISOR_FD"] is None
    assert seen["AGRPO_REPORT_FD"] is None


def test_every_line_is_heard_and_the_last_thirty_are_kept(supervisor: Supervisor) -> None:
    heard: list[tuple[str, str]] = []
    stage = supervisor.start(EXAMPLE, {"EXAMPLE": "print_much"}, lambda name, line: heard.append((name, line)))
    supervisor.wait(stage)
    lines = [line for name, line in heard if name == EXAMPLE]
    assert lines[:100] == [f"line {number}" for number in range(100)]
    assert lines[100] == "100%"
    assert stage.output.last_lines() == lines[-30:]
    assert "no line break" in stage.log_path.read_text()


def test_a_listener_that_fails_does_not_hold_the_stage_up(supervisor: Supervisor) -> None:
    calls: list[str] = []

    def listen(name: str, line: str) -> None:
        calls.append(line)
        raise ValueError("deaf")

    stage = supervisor.start(EXAMPLE, {"EXAMPLE": "print_much"}, listen)
    supervisor.wait(stage)
    assert calls == ["line 0"]
    assert stage.exit_code == 0


def test_a_full_log_is_kept_three_times(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", rotate_bytes=10)
    for number in range(11):
        log.write(b"line %02d" % number)
    log.close()
    kept = {path.name: path.read_text().split("\n")[:-1] for path in tmp_path.iterdir()}
    assert kept == {
        "x.log": ["line 10"],
        "x.log.1": ["line 08", "line 09"],
        "x.log.2": ["line 06", "line 07"],
        "x.log.3": ["line 04", "line 05"],
    }


def test_a_log_that_cannot_be_written_is_given_up_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = LogFile(Path("/dev/full"))
    full.write(b"a line")
    full.write(b"another")
    assert [record.message for record in caplog.records] == [
        "no more lines are kept in /dev/full: [Errno 28] No space left on device; free the space or the path"
    ]


def test_a_report_of_any_length_fits_the_pipe_nobody_reads_yet() -> None:
    read_end, write_end = os.pipe()
    send(ErrorReport(error_type="E", message="", traceback=""), write_end)
    assert receive(os.fdopen(read_end, "rb", buffering=0)) == ErrorReport(error_type="E", message="", traceback="")
    read_end, write_end = os.pipe()
    report = ErrorReport.of(ValueError("\x00\udc80" * 100_000))
    send(report, write_end)
    assert receive(os.fdopen(read_end, "rb", buffering=0)) == report


def test_half_a_report_is_none() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b'{"error_type": "E", "mess')
    os.close(write_end)
    assert receive(os.fdopen(read_end, "rb", buffering=0)) is None
