"""Reading the database: plain DuckDB, at any time while a run goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Protocol, cast

import duckdb
import pyarrow as pa

from agrpo.database.advice import advised
from agrpo.database.opening import Trouble, open_patiently, trouble_of
from agrpo.database.schema import VERSION
from agrpo.errors import DatabaseError

DEADLINE_SECONDS = 30.0
FILE_NAME = "run.duckdb"


class HasDatabase(Protocol):
    """A run folder, which knows where its database is."""

    @property
    def database(self) -> Path: ...


def connect(
    path_or_run: str | Path | HasDatabase, *, deadline_seconds: float = DEADLINE_SECONDS
) -> duckdb.DuckDBPyConnection:
    """A read-only connection to a run's database, given as its file, the run's local folder, or a `RunFolder`.

    Close it soon: while it is open the recorder cannot write (the run itself goes on). Times are shown in UTC. Raises
    `DatabaseBusy` where the file stays locked past the deadline, `DatabaseError` where there is none to read, or one of
    another schema version.
    """
    path = _file_of(path_or_run)
    if not path.exists():
        raise DatabaseError(
            f"{path} does not exist; the recorder makes it within recorder.every_seconds of its start, for a run that "
            "has ended too: `agrpo record RUN`"
        )
    connection = None
    try:
        connection = open_patiently(path, read_only=True, deadline_seconds=deadline_seconds)
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute("SELECT version FROM schema_info").fetchall()
    except duckdb.Error as error:
        if connection is not None:
            connection.close()
        raise DatabaseError(
            f"{path} cannot be read as a run's database: {error}; `agrpo rebuild RUN` builds it again"
        ) from error
    if found != [(VERSION,)]:
        connection.close()
        raise DatabaseError(
            f"{path} has schema version {found[0][0] if found else None}, this agrpo reads {VERSION}; `agrpo record RUN` builds it again "
            "from the run's folder"
        )
    return connection


@contextlib.contextmanager
def asking(path_or_run: str | Path | HasDatabase) -> Generator[duckdb.DuckDBPyConnection]:
    """A connection for several questions, closed at the end of the block. What DuckDB says is raised as our error."""
    with connect(path_or_run) as connection:
        try:
            yield connection
        except duckdb.Error as error:
            if trouble_of(error) is Trouble.DAMAGED:
                raise DatabaseError(
                    f"{_file_of(path_or_run)} is damaged: {error}; `agrpo rebuild RUN` builds it again"
                ) from error
            raise DatabaseError(advised(connection, error)) from error


def query(path_or_run: str | Path | HasDatabase, sql: str) -> pa.Table:
    """The result of one query; the file is let go at once. Raises as `connect`, and `DatabaseError` for bad SQL."""
    with asking(path_or_run) as connection:
        relation = cast("duckdb.DuckDBPyRelation | None", connection.sql(sql))
        return pa.table({}) if relation is None else relation.to_arrow_table()


def _file_of(path_or_run: str | Path | HasDatabase) -> Path:
    if not isinstance(path_or_run, str | Path):
        return path_or_run.database
    if isinstance(path_or_run, str) and "://" in path_or_run:
        raise DatabaseError(
            f"{path_or_run} is not on this machine, and a database is always local; pass `RunFolder.open(url)`, which "
            "knows where the recorder keeps it"
        )
    path = Path(path_or_run)
    return path / FILE_NAME if path.is_dir() else path
