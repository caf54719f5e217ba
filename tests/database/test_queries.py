from __future__ import annotations

import subprocess
import sys
import threading

import duckdb
import pytest

import agrpo
from agrpo.database.queries import connect, query
from agrpo.database.schema import VERSION
from agrpo.database.writer import Database
from agrpo.errors import DatabaseBusy, DatabaseError
from agrpo.stages.recorder import record_once
from tests.database.other_process import holding
from tests.database.synthetic import new_run, small_run


@pytest.fixture
def path(tmp_path):
    database = Database(tmp_path / "run.duckdb")
    database.ledger()
    return database.path


def test_the_file_its_folder_and_the_run_all_name_the_database(tmp_path):
    folder = new_run(tmp_path / "run")
    Database(folder.database).ledger()
    for named in (folder.database, str(folder.database), tmp_path / "run", str(tmp_path / "run"), folder):
        assert query(named, "SELECT version FROM schema_info").to_pydict() == {"version": [VERSION]}


def test_agrpo_offers_connect_at_its_door(path):
    with agrpo.connect(path) as connection:
        assert connection.execute("SELECT version FROM schema_info").fetchall() == [(VERSION,)]


def test_a_connection_only_reads_and_shows_times_in_utc(path):
    with connect(path) as connection:
        assert connection.execute("SELECT '2026-01-01 00:00:00+00'::TIMESTAMPTZ::VARCHAR").fetchall() == [
            ("2026-01-01 00:00:00+00",)
        ]
        with pytest.raises(duckdb.InvalidInputException, match="read-only"):
            connection.execute("DELETE FROM steps")


def test_a_query_lets_the_file_go_at_once(path):
    assert query(path, "FROM steps").num_rows == 0
    with holding(path, "write"):
        pass


def test_a_query_without_rows_keeps_its_columns(path):
    assert query(path, "SELECT attempt, first_step FROM lineage").column_names == ["attempt", "first_step"]


def test_no_database_yet_is_said_with_what_makes_one(tmp_path):
    with pytest.raises(
        DatabaseError,
        match=r"run\.duckdb does not exist; the recorder makes it .* `agrpo record RUN`",
    ):
        connect(tmp_path)


def test_a_url_is_refused_with_what_to_pass():
    with pytest.raises(DatabaseError, match=r"pass `RunFolder.open\(url\)`"):
        connect("s3://bucket/run")


def test_bad_sql_is_our_error_with_the_reason(path):
    with pytest.raises(DatabaseError, match="no_such_table"):
        query(path, "FROM no_such_table")


def test_a_damaged_file_is_said_with_what_to_do(path):
    path.write_bytes(b"damaged")
    with pytest.raises(DatabaseError, match="rebuild RUN` builds it again"):
        connect(path)


def test_a_writer_is_waited_for(path):
    with holding(path, "write") as writer:
        threading.Timer(0.1, writer.kill).start()
        assert query(path, "FROM steps").num_rows == 0


def test_a_writer_that_stays_is_named_by_its_pid(path):
    with holding(path, "write") as writer:
        with pytest.raises(DatabaseBusy, match=f"held open by process {writer.pid} "):
            connect(path, deadline_seconds=0.0)


def test_the_recorder_of_this_process_is_waited_for(path):
    writer = duckdb.connect(str(path))
    threading.Timer(0.1, writer.close).start()
    assert query(path, "FROM steps").num_rows == 0


def test_import_agrpo_loads_no_duckdb():
    program = "import agrpo, sys; assert 'duckdb' not in sys.modules; agrpo.connect; assert 'duckdb' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_file_of_another_schema_is_refused_with_what_to_do(path):
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE schema_info SET version = 1")
    with pytest.raises(DatabaseError, match=rf"schema version 1, this agrpo reads {VERSION}; `agrpo record RUN`"):
        connect(path)


def test_a_database_that_is_not_a_runs_is_refused(tmp_path):
    with duckdb.connect(str(tmp_path / "other.duckdb")) as connection:
        connection.execute("CREATE TABLE schema_of_others (version INTEGER)")
    with pytest.raises(DatabaseError, match="cannot be read as a run's database"):
        connect(tmp_path / "other.duckdb")


def test_blocks_that_are_damaged_are_said_with_what_to_do(tmp_path):
    folder = small_run(tmp_path / "run")
    record_once(folder, Database(folder.database))
    with duckdb.connect(str(folder.database)) as connection:
        connection.execute("CHECKPOINT")
    data = bytearray(folder.database.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    folder.database.write_bytes(data)
    with pytest.raises(DatabaseError, match="rebuild RUN` builds it again"):
        for name in ("rollouts", "turns", "groups", "samples", "events"):
            query(folder, f"SELECT * FROM {name}")
