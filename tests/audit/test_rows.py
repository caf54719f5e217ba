"""The database against the folder: a row that is gone, changed or of nowhere is named, and so is a damaged byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from agrpo.audit import rebuild, verify
from agrpo.errors import StoreLostWrites
from agrpo.queue.run_folder import RunFolder
from agrpo.records.documents import dump
from agrpo.records.progress import Hint
from agrpo.whatif.asking import answer
from agrpo.whatif.question import ask_advantage
from agrpo.whatif.question import begin as ask
from tests.audit.finished import begin, flip, line, plan_at, sql, told
from tests.stages.walk import Walk

DELETED = [
    ("groups", "ticket = 3", "groups 3"),
    ("rollouts", "ticket = 3 AND rollout_index = 2", "groups 3"),
    ("turns", "ticket = 3 AND rollout_index = 2", "groups 3"),
    ("scored_groups", "ticket = 3", "scored 3"),
    ("scores", "ticket = 3 AND rollout_index = 2", "scored 3"),
    ("rewards", "ticket = 3 AND rollout_index = 2", "scored 3"),
    ("plans", "step = 2", "plans/0 2"),
    ("step_groups", "ticket = 3", "plans/0 2"),
    ("steps", "step = 2", "steps/0 2"),
    ("samples", "ticket = 3 AND rollout_index = 2", "steps/0 2"),
    ("metrics", "step = 2 AND name = 'reward'", "steps/0 2"),
    ("step_rows", "step = 2 AND row_index = 0", "steps/0 2"),
    ("versions", "version = 2", "versions/0 2"),
    ("bases", "attempt = 0", "bases 0"),
    ("attempts", "attempt = 0", "attempts 0"),
    ("runs", "true", "run 0"),
]
"""Table, rows, and the record they come from."""


def test_rows_that_were_deleted_are_named_in_every_table(folder: RunFolder):
    for table, where, _ in DELETED:
        sql(folder, f"DELETE FROM {table} WHERE {where}")
    found = told(folder)
    for table, _, stream in DELETED:
        (one,) = [line for line in found if line.startswith(f"database, table {table}, {stream}: expected ")]
        assert ", without " in one
    assert len(found) == len(DELETED)


def test_a_value_that_was_changed_is_named_with_both(folder: RunFolder):
    ticket = plan_at(folder, 2).tickets[0]
    sql(folder, f"UPDATE samples SET advantage = 7 WHERE ticket = {ticket} AND rollout_index = 1")
    (found,) = told(folder)
    assert found.startswith("database, table samples, steps/0 2: expected attempt 0, step 2, ")
    assert f"found attempt 0, step 2, ticket {ticket}, rollout_index 1, sequence_index 0, advantage 7.0" in found


def test_what_a_function_returned_with_a_rollout_is_compared(folder: RunFolder):
    sql(folder, """UPDATE rollouts SET own_columns = '{"shots": 3}' WHERE ticket = 3 AND rollout_index = 1""")
    (found,) = told(folder)
    assert found.startswith("database, table rollouts, groups 3: expected ticket 3, rollout_index 1, ")
    assert "own_columns None; found " in found and found.endswith('own_columns {"shots": 3}')


def test_every_number_is_compared(folder: RunFolder):
    with duckdb.connect(str(folder.database)) as connection:
        kinds = connection.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND data_type = 'DOUBLE' "
            "AND table_name IN (SELECT table_name FROM duckdb_tables())"
        ).fetchall()
        changed = {}
        for table, column in kinds:
            connection.execute(f"UPDATE {table} SET {column} = {column} + 1.5 WHERE rowid = 0 AND {column} IS NOT NULL")
            if connection.execute(f"SELECT count({column}) FROM {table} WHERE rowid = 0").fetchall()[0][0]:
                changed.setdefault(table, []).append(column)
    found = told(folder)
    assert len(changed) >= 8
    assert sum(map(len, changed.values())) >= 30
    for table, columns in changed.items():
        (one,) = [line for line in found if line.startswith(f"database, table {table}, ")]
        assert [column for column in columns if f"{column} " not in one] == []


def test_rows_of_nowhere_are_named(folder: RunFolder):
    sql(folder, "INSERT INTO steps (attempt, step, digest) VALUES (7, 9, 'd')")
    expected = "database, table steps, steps/7 9: it has 1 row; expected none, since the folder holds no such record"
    assert told(folder) == [expected]


def test_a_row_stored_twice_is_named(folder: RunFolder):
    sql(folder, "INSERT INTO groups SELECT * FROM groups WHERE ticket = 5")
    (found,) = told(folder)
    assert found.startswith(
        "database, table groups, groups 5: expected 1 row, found 2, once more than expected: ticket 5, "
    )


@pytest.mark.parametrize("place", [0.0001, 0.3, 0.5, 0.8, 0.9999])
def test_a_damaged_byte_of_the_database_is_named(folder: RunFolder, place: float):
    flip(folder.database, place)
    (found,) = told(folder)
    assert found.startswith(f"{folder.database}: ")
    assert "checksum" in found or "Corrupt" in found
    assert "`agrpo rebuild RUN`" in found


def test_what_is_not_recorded_is_told_of_a_living_run_and_found_of_one_that_has_ended(folder: RunFolder):
    sql(folder, "DELETE FROM ingest WHERE stream = 'steps/0' AND number = 4")
    for table in ("steps", "samples", "metrics", "step_rows"):
        sql(folder, f"DELETE FROM {table} WHERE step = 4")
    (found,) = told(folder)
    assert "1 record not recorded (1 of steps): `agrpo record` adds them" in found
    folder.filesystem.put("hint/run_ahead.json", dump(Hint(limit_ticket=8, dropped=0, floor=8)), exclusive=False)
    folder.beat("learner", None)
    balance = verify(folder)
    assert balance.findings == []
    assert line(balance, "database").endswith("rows; 1 record not recorded yet")


def test_a_run_without_a_database_balances_and_says_so(folder: RunFolder):
    folder.database.unlink()
    balance = verify(folder)
    assert balance.findings == []
    assert "there is none at" in line(balance, "database")


def test_a_database_made_again_has_the_rows_that_were_recorded_live(tiny_model: Path, tmp_path: Path):
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 6}, recorder={"every_seconds": 0.05})
    living = Walk(folder).start("generator", "scorer", "learner", "recorder")
    living.threads[2].join(60)
    living.stop.set()
    living.join()
    rebuilt = rebuild(folder, check=True)
    assert rebuilt.identical, rebuilt
    assert {table.table for table in rebuilt.comparisons if table.num_rows} >= {"ingest", "turns", "samples", "events"}


def test_rebuilding_restores_a_damaged_database(folder: RunFolder, tmp_path: Path):
    whole = shutil.copy(folder.database, tmp_path / "whole.duckdb")
    flip(folder.database)
    assert "Corrupt" in (rebuild(folder).unreadable or "")
    assert told(folder) == []
    shutil.copy(whole, folder.database)
    assert rebuild(folder, check=True).identical


def test_rebuilding_says_which_rows_somebody_changed(folder: RunFolder):
    sql(folder, "UPDATE samples SET advantage = 7 WHERE step = 2 AND rollout_index = 1")
    sql(folder, "DELETE FROM turns WHERE ticket = 3")
    rebuilt = rebuild(folder)
    odd = {table.table: table for table in rebuilt.comparisons if not table.identical}
    assert odd.keys() == {"samples", "turns"}
    assert (odd["samples"].only_old, odd["samples"].only_new, odd["samples"].columns) == (2, 2, ("advantage",))
    assert (odd["turns"].only_old, odd["turns"].only_new) == (0, 4)
    assert rebuild(folder, check=True).identical


def test_a_check_leaves_the_old_database_and_nothing_beside_it(folder: RunFolder):
    sql(folder, "DELETE FROM turns WHERE ticket = 3")
    before = {path.name for path in Path(folder.url).iterdir()}
    data = folder.database.read_bytes()
    assert not rebuild(folder, check=True).identical
    assert folder.database.read_bytes() == data
    assert {path.name for path in Path(folder.url).iterdir()} == before


def test_a_run_goes_on_without_its_database_and_the_recorder_takes_over_the_one_made_again(
    tiny_model: Path, tmp_path: Path
):
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 10}, recorder={"every_seconds": 0.05})
    living = Walk(folder).start("generator", "scorer", "learner", "recorder")
    living.until(lambda: folder.database.exists() and len(folder.done_steps(0)) >= 2)
    flip(folder.database, 0.0001)
    living.until(lambda: len(folder.done_steps(0)) >= 5)
    rebuild(folder)
    living.threads[2].join(60)
    living.stop.set()
    living.join()
    assert told(folder) == []
    assert rebuild(folder, check=True).identical


@pytest.mark.parametrize("what", ["groups", "tokens"])
def test_rebuilding_keeps_the_last_copy_of_what_the_folder_has_lost(folder: RunFolder, what: str):
    lost = folder.groups.key(3) if what == "groups" else "steps/000000/00000002.tokens.arrow"
    folder.filesystem.delete(lost)
    before = folder.database.read_bytes()
    with pytest.raises(StoreLostWrites, match="groups 3" if what == "groups" else "tokens of steps/0 2"):
        rebuild(RunFolder.open(folder.url))
    assert folder.database.read_bytes() == before


def test_a_what_if_that_is_not_recorded_yet_is_told_and_no_finding(folder: RunFolder):
    answer(folder, ask(folder, ask_advantage(folder, "grpo", ["scale=none"], name="unscaled")))
    balance = verify(folder)
    assert balance.findings == []
    assert "not recorded yet" in line(balance, "database")
