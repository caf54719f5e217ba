"""The history that instruments show."""

from __future__ import annotations

from pathlib import Path

from agrpo.database.writer import Database
from agrpo.instruments.history import FollowedHistory, recorded_history
from agrpo.queue.run_folder import StepKey
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_attempt, add_done, add_plan, add_step, small_run


def test_a_followed_history_tells_each_step_once_and_forgets_what_a_resume_took_back(tmp_path: Path):
    folder = small_run(tmp_path / "run")
    history = FollowedHistory(folder)
    assert [point.step for point in history.update()] == [1, 2]
    assert history.update() == []
    add_attempt(folder, 1, parent=0, base_step=1)
    add_step(folder, 1, 2)
    assert [(point.attempt, point.step) for point in history.update()] == [(1, 2)]
    assert [(point.attempt, point.step) for point in history.points] == [(0, 1), (1, 2)]


def test_the_database_gives_the_same_history_as_the_folder(tmp_path: Path):
    folder = small_run(tmp_path / "run")
    add_done(folder, add_plan(folder, StepKey(0, 3), [3]))
    record_once(folder, Database(folder.database))
    history = FollowedHistory(folder)
    history.update()
    assert recorded_history(folder) == history.points
    assert len(history.points) == 3
