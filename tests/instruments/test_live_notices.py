"""Warnings, from the logs of a run's stages and from its events."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from agrpo.instruments.live.notices import FIRST_BYTES, FollowedNotices, Notice, notice_of
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.stages.output import LogFile
from tests.database.synthetic import new_run

WARNING = "2026-11-29T16:09:42Z WARNING agrpo.stages.generator ticket 3: 1 of 8 rollouts failed"
TOLD = "warning: generator: ticket 3: 1 of 8 rollouts failed"


def log_of(folder: RunFolder, name: str = "generator-20261129T160937Z-c855be") -> Path:
    path = folder.local / "logs" / f"{name}.log"
    path.parent.mkdir(exist_ok=True)
    return path


def told(followed: FollowedNotices) -> list[str]:
    return [str(notice) for notice in followed.update()]


def test_only_lines_that_ask_for_attention_are_notices():
    notice = notice_of("generator", WARNING)
    assert notice is not None
    assert (notice.at, str(notice)) == (datetime(2026, 11, 29, 16, 9, 42, tzinfo=UTC), TOLD)
    assert notice_of("learner", "2026-11-29T16:09:42Z INFO agrpo.stages.learner step 1/4") is None
    assert notice_of("learner", "torch/x.py:3 WARNING of its own kind") is None
    assert notice_of("learner", "") is None


def test_a_line_is_told_once_and_only_when_it_is_whole(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    log = log_of(folder)
    log.write_text(WARNING[:30])
    followed = FollowedNotices(folder)
    assert told(followed) == []
    log.write_text(f"{WARNING}\n")
    assert told(followed) == [TOLD]
    assert told(followed) == []


def test_the_last_words_of_a_stage_that_failed_are_told(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    log_of(folder).write_text("2026-11-29T16:09:40Z INFO agrpo.stages serving\nerror: EngineError: no answer\n")
    assert told(FollowedNotices(folder)) == ["error: generator: EngineError: no answer"]


def test_of_what_was_there_before_only_the_end_of_the_newest_log_is_read(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    log_of(folder, "generator-20261129T150000Z-aaaaaa").write_text(f"{WARNING}\n")
    log_of(folder).write_text(f"{WARNING}\n" + "x" * FIRST_BYTES + f"\n{WARNING} again\n")
    followed = FollowedNotices(folder)
    assert told(followed) == [f"{TOLD} again"]
    log_of(folder, "generator-20261129T170000Z-bbbbbb").write_text(f"{WARNING}\n")
    assert told(followed) == [TOLD]


def test_a_log_that_was_begun_anew_is_read_from_its_start(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    log_of(folder).write_text(f"{WARNING}\n{WARNING}\n")
    followed = FollowedNotices(folder)
    followed.update()
    log_of(folder).write_text(f"{WARNING}\n")
    assert told(followed) == [TOLD]


def test_restarts_and_failures_that_the_supervisor_tells_are_notices(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    events = EventStream(folder, "supervisor-a")
    events.write("stage_started", stage="scorer", pid=1)
    events.write("stage_restarted", stage="scorer", pid=1, reason="was killed by SIGKILL")
    followed = FollowedNotices(folder)
    (notice,) = followed.update()
    assert str(notice) == "warning: scorer: was started again: was killed by SIGKILL"
    event = folder.event("supervisor-a", 1)
    assert event is not None
    assert notice.at == datetime.fromtimestamp(event.at, UTC)
    events.write("stage_failed", stage="learner", pid=2, reason="ended with exit code 1")
    assert told(followed) == ["error: learner: failed: ended with exit code 1"]


def test_a_log_that_is_rotated_is_read_to_its_end_before_the_new_one(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    log = LogFile(log_of(folder), rotate_bytes=4 * len(WARNING))
    followed = FollowedNotices(folder)
    told_of: list[str] = []
    for number in range(23):
        log.write(f"{WARNING} {number:02d}".encode())
        if number % 3 == 0:
            told_of += told(followed)
    log.close()
    assert told_of + told(followed) == [f"{TOLD} {number:02d}" for number in range(23)]


def test_logs_that_were_filled_between_two_looks_are_all_read(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    log = LogFile(log_of(folder), rotate_bytes=4 * len(WARNING))
    log.write(WARNING.encode())
    followed = FollowedNotices(folder)
    followed.update()
    for number in range(10):
        log.write(f"{WARNING} {number}".encode())
    log.close()
    assert told(followed) == [f"{TOLD} {number}" for number in range(10)]


def test_a_log_that_is_missing_in_the_middle_of_a_rotation_is_read_at_the_next_look(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    path = log_of(folder)
    path.write_text("")
    followed = FollowedNotices(folder)
    followed.update()
    path.write_text(f"{WARNING}\n")
    path.replace(path.with_name(f"{path.name}.1"))
    path.symlink_to(tmp_path / "nowhere")
    assert told(followed) == []
    path.unlink()
    path.write_text(f"{WARNING} anew\n")
    assert told(followed) == [TOLD, f"{TOLD} anew"]


def test_warnings_of_one_kind_differ_in_numbers_and_ids_only():
    def kind(text: str) -> str:
        return Notice(at=None, level="warning", stage="scorer", text=text).kind

    assert kind("ticket 3: 1 of 8 rollouts failed (run-20261129.log)") == kind("ticket 41: 2 of 8 rollouts failed (a7)")
    assert kind("ticket 3: judge down") != kind("ticket 3: judge late")
