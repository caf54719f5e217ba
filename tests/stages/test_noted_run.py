"""Whole runs whose reward notes what it saw: SQL, the learner's log and a second run say the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from agrpo.audit.verifying import verify
from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged, logged
from tests.stages.walk import LOCKSTEP, settings, walk


def walked(folder: RunFolder) -> RunFolder:
    walk(folder)
    record_once(folder, Database(folder.database))
    return folder


def notes(folder: RunFolder) -> list[tuple[object, ...]]:
    sql = "SELECT ticket, rollout_index, name, value FROM reward_extras ORDER BY ALL"
    return [tuple(row.values()) for row in query(folder.database, sql).to_pylist()]


@pytest.mark.spec("G-184", "G-186")
def test_a_lockstep_run_notes_the_same_when_it_is_repeated(begin):
    first, second = (walked(begin(name, reward="tells", **LOCKSTEP)) for name in ("first", "second"))
    assert_sql_says_what_was_logged(first)
    assert [logged(first)[step, "progress"] for step in (1, 2, 3, 4)] == [0.0, 0.25, 0.5, 0.75]
    assert notes(first) == notes(second) and len(notes(first)) == 4 * 2 * 4 * 2
    kept = ("progress", "judged/longest_max", "judged/short_count")
    said = [{key: value for key, value in logged(run).items() if key[1] in kept} for run in (first, second)]
    assert said[0] == said[1] and len(said[0]) == 4 * 3


@pytest.fixture(scope="module")
def noted(tiny_model: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("noted")
    tree = settings(tiny_model, prompts, place, reward="tells", asynchronous={"max_staleness": 2})
    return walked(prepare(resolve(values=tree), folder=str(place / "run")))


@pytest.mark.spec("A-206")
def test_an_asynchronous_run_notes_the_step_of_the_weights_that_sampled(noted: RunFolder):
    assert_sql_says_what_was_logged(noted)
    sql = "SELECT DISTINCT model_step, number FROM groups JOIN reward_extras USING (ticket) WHERE name = 'step'"
    steps = [tuple(row.values()) for row in query(noted.database, sql).to_pylist()]
    assert steps and all(step == told for step, told in steps)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE reward_extras SET value = '[9]' WHERE ticket = 1 AND rollout_index = 0 AND name = 'first'",
        "UPDATE reward_metrics SET value = 9 WHERE ticket = 1 AND name = 'progress'",
    ],
)
def test_notes_in_the_database_are_held_to_those_that_were_scored(noted: RunFolder, tmp_path: Path, sql: str):
    assert verify(noted).findings == []
    kept = tmp_path / "kept.duckdb"
    shutil.copyfile(noted.database, kept)
    with duckdb.connect(str(noted.database)) as connection:
        connection.execute(sql)
    told = [str(finding) for finding in verify(noted).findings]
    shutil.copyfile(kept, noted.database)
    assert told and all("reward_" in one for one in told)
