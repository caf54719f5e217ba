"""The history that instruments show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agrpo.database.writer import Database
from agrpo.instruments.history import FollowedHistory, recorded_history
from agrpo.queue.run_folder import StepKey
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_attempt, add_done, add_plan, add_step, new_run, small_run


def test_a_followed_history_tells_each_step_once_and_forgets_what_a_resume_took_back(tmp_path: Path):
    folder = small_run(tmp_path / "run")
    history = FollowedHistory(folder)
    assert [point.step for point in history.update()] == [1, 2]
    assert history.update() == []
    add_attempt(folder, 1, parent=0, base_step=1)
    add_step(folder, 1, 2)
    assert [(point.attempt, point.step) for point in history.update()] == [(1, 2)]
    assert [(point.attempt, point.step) for point in history.points] == [(0, 1), (1, 2)]


def test_a_long_history_is_read_in_parts(tmp_path: Path):
    folder = small_run(tmp_path / "run")
    add_done(folder, add_plan(folder, StepKey(0, 3), [3]))
    history = FollowedHistory(folder)
    assert [[point.step for point in history.update(most=2)] for _ in range(3)] == [[1, 2], [3], []]
    assert [point.step for point in history.points] == [1, 2, 3]


def test_a_step_without_measures_is_a_step(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    folder.write_done(replace(add_done(new_run(tmp_path / "other"), add_plan(folder, StepKey(0, 1), [])), metrics={}))
    record_once(folder, Database(folder.database))
    (point,) = recorded_history(folder)
    assert point.metrics == {}


def test_the_database_gives_the_same_history_as_the_folder(tmp_path: Path):
    folder = small_run(tmp_path / "run")
    add_done(folder, add_plan(folder, StepKey(0, 3), [3]))
    record_once(folder, Database(folder.database))
    history = FollowedHistory(folder)
    history.update()
    assert recorded_history(folder) == history.points
    assert len(history.points) == 3
