from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading

import duckdb
import pyarrow as pa
import pytest

from agrpo.database.ledger import Entry
from agrpo.database.schema import VERSION
from agrpo.database.writer import Database
from agrpo.errors import DatabaseBusy, DatabaseError
from tests.database.other_process import holding


@pytest.fixture
def database(tmp_path) -> Database:
    return Database(tmp_path / "run.duckdb", deadline_seconds=5.0)


def steps(*numbers: int) -> dict[str, pa.Table]:
    return {"steps": pa.table({"attempt": [0] * len(numbers), "step": list(numbers)})}


def entries(*numbers: int) -> list[Entry]:
    return [Entry("steps/0", number) for number in numbers]


def recorded(database: Database) -> list[int]:
    with duckdb.connect(str(database.path), read_only=True) as connection:
        numbers = [number for (number,) in connection.execute("SELECT step FROM steps ORDER BY 1").fetchall()]
        ledger = [number for (number,) in connection.execute("SELECT number FROM ingest ORDER BY 1").fetchall()]
    assert numbers == ledger
    return numbers


def names(database: Database) -> list[str]:
    return sorted(path.name for path in database.path.parent.iterdir())


def test_rows_and_ledger_are_there_for_anyone_after_an_append(database):
    assert database.append(steps(1, 2), entries(1, 2))
    assert recorded(database) == [1, 2]
    assert Database(database.path).ledger().missing("steps/0", [1, 2, 3]) == entries(3)


def test_the_file_appears_whole_with_every_view(database):
    database.ledger()
    assert names(database) == ["run.duckdb"]
    with duckdb.connect(str(database.path), read_only=True) as connection:
        assert connection.execute("FROM group_status").fetchall() == []


def test_an_append_that_fails_midway_leaves_nothing(database):
    broken = {**steps(1), "metrics": pa.table({"no_such_column": [1]})}
    with pytest.raises(DatabaseError, match="no_such_column"):
        database.append(broken, entries(1))
    assert recorded(database) == []
    assert database.append(steps(1), entries(1))
    assert recorded(database) == [1]


def test_a_second_writer_is_noticed_and_nothing_is_written_twice(database):
    late = Database(database.path)
    assert late.ledger().missing("steps/0", [1]) == entries(1)
    assert database.append(steps(1), entries(1))
    assert not late.append(steps(1), entries(1))
    assert late.ledger().missing("steps/0", [1]) == []
    assert late.append(steps(2), entries(2))
    assert recorded(database) == [1, 2]


def test_a_file_deleted_under_the_writer_is_made_again(database):
    database.append(steps(1), entries(1))
    database.path.unlink()
    assert not database.append(steps(2), entries(2))
    assert len(database.ledger()) == 0
    assert database.append(steps(1, 2), entries(1, 2))
    assert recorded(database) == [1, 2]


def test_the_log_of_a_deleted_file_does_not_spoil_the_new_one(database):
    database.append(steps(1), entries(1))
    program = (
        f"import duckdb, os; c = duckdb.connect({str(database.path)!r}); c.execute('DELETE FROM steps'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert names(database) == ["run.duckdb", "run.duckdb.wal"]
    database.path.unlink()
    assert Database(database.path).append(steps(7), entries(7))
    assert recorded(database) == [7]
    assert names(database) == ["run.duckdb"]


def test_a_reader_in_another_process_is_named_by_its_pid(database):
    database.ledger()
    database.deadline_seconds = 0.0
    with holding(database.path, "read") as reader:
        with pytest.raises(DatabaseBusy, match=rf"held open by process {reader.pid} .*close that connection"):
            database.append(steps(1), entries(1))
    database.deadline_seconds = 5.0
    assert database.append(steps(1), entries(1))


def test_a_reader_in_this_process_is_waited_for(database):
    database.ledger()
    reader = duckdb.connect(str(database.path), read_only=True)
    threading.Timer(0.1, reader.close).start()
    assert database.append(steps(1), entries(1))
    assert recorded(database) == [1]


@pytest.mark.parametrize(
    "damage",
    [b"", b"hello", pytest.param(None, id="body")],
)
def test_a_damaged_file_is_set_aside_and_begun_anew(database, damage):
    database.append(steps(*range(1, 2000)), entries(*range(1, 2000)))
    if damage is None:
        size = database.path.stat().st_size
        with database.path.open("r+b") as file:
            file.seek(12288)
            file.write(os.urandom(size - 12288))
    else:
        database.path.write_bytes(damage)
    again = Database(database.path)
    assert again.append(steps(1), entries(1))
    assert recorded(again) == [1]
    assert any(name.startswith("run.duckdb.corrupt-") for name in names(again))


def test_a_damaged_log_is_set_aside_with_its_file(database):
    database.append(steps(1), entries(1))
    program = (
        f"import duckdb, os; c = duckdb.connect({str(database.path)!r}); "
        "c.execute('INSERT INTO steps (attempt, step) SELECT 0, range FROM range(5000)'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    log = database.path.with_name("run.duckdb.wal")
    torn = bytearray(log.read_bytes())
    torn[len(torn) // 2] ^= 255
    log.write_bytes(torn)
    again = Database(database.path)
    assert again.append(steps(1), entries(1))
    assert recorded(again) == [1]
    assert [name.partition("-")[0] for name in names(again)] == [
        "run.duckdb",
        "run.duckdb.corrupt",
        "run.duckdb.corrupt",
    ]


def test_an_older_schema_is_built_again_and_a_newer_one_is_refused(database):
    database.append(steps(1), entries(1))
    _set_version(database, 0)
    assert len(Database(database.path).ledger()) == 0
    assert any(name.startswith("run.duckdb.version-0-") for name in names(database))
    _set_version(database, 99)
    with pytest.raises(DatabaseError, match=f"has schema version 99, this agrpo writes {VERSION}: upgrade agrpo"):
        Database(database.path).ledger()


def _set_version(database: Database, version: int) -> None:
    with duckdb.connect(str(database.path)) as connection:
        connection.execute("UPDATE schema_info SET version = ?", [version])


def test_a_full_disk_writes_nothing_and_the_next_append_goes_on(database):
    database.append(steps(1), entries(1))
    numbers = range(2, 60_000)
    size = database.path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, before[1]))
    try:
        with pytest.raises(DatabaseError, match="make room on its disk"):
            database.append(steps(*numbers), entries(*numbers))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert recorded(database) == [1]
    assert database.append(steps(*numbers), entries(*numbers))
    assert len(recorded(database)) == 59_999


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="make its folder writable"):
        Database(tmp_path / "file" / "run.duckdb").ledger()
