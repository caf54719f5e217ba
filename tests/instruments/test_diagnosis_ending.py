"""A run that stopped because a stage failed."""

from __future__ import annotations

from pathlib import Path

from agrpo.database.writer import Database
from agrpo.instruments.diagnosis import recorded_ending
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.stages.recorder import record_once
from tests.database.synthetic import small_run


def ending(folder: RunFolder) -> list[str]:
    record_once(folder, Database(folder.database))
    return [finding.reading for finding in recorded_ending(folder)]


def test_the_first_stage_that_failed_is_told_until_the_run_is_started_again(tmp_path: Path):
    folder = small_run(tmp_path / "run")
    assert ending(folder) == []
    first = EventStream(folder, "supervisor-a")
    first.write("stage_started", stage="generator")
    first.write("stage_failed", stage="generator", reason="stage 'generator' failed: EngineError: no answer")
    first.write("stage_failed", stage="learner", reason="stage 'learner' failed: it was stopped")
    assert ending(folder) == ["stage 'generator' failed: EngineError: no answer."]
    EventStream(folder, "supervisor-b").write("stage_started", stage="generator")
    assert ending(folder) == []
