"""Writing the database: open, one transaction, close; between two of them anyone may read.

Rows and the ledger that says where they come from are committed together, so whatever is killed, a record is in once or
not at all. The file is only a projection: what cannot be used is set aside and built again from the run folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from agrpo.database.ledger import Entry, Ledger
from agrpo.database.opening import Trouble, open_patiently, trouble_of
from agrpo.database.schema import LEDGER, VERSION, create_all
from agrpo.errors import DatabaseError

logger = logging.getLogger(__name__)


class Database:
    """The file as its one writer sees it. Not thread-safe."""

    def __init__(self, path: Path, *, deadline_seconds: float = 30.0) -> None:
        self.path = path
        self.deadline_seconds = deadline_seconds
        """Longest wait for others to let the file go."""
        self._ledger: Ledger | None = None

    def ledger(self) -> Ledger:
        """What is recorded. Makes the file where there is none, or none that can be used.

        Raises `DatabaseBusy` or `DatabaseError`.
        """
        if self._ledger is None or not self.path.exists():
            with self._translated():
                try:
                    self._ledger = self._read_ledger()
                except duckdb.Error as error:
                    if trouble_of(error) is not Trouble.DAMAGED:
                        raise
                    logger.warning("%s is damaged: %s", self.path, error)
                    self._set_aside("corrupt")
                    self._ledger = self._read_ledger()
        return self._ledger

    def replace_by(self, other: Path) -> None:
        """Put another database file in place of this one, at once, when nobody has either open.

        Raises `DatabaseBusy` or `DatabaseError`.
        """
        with self._translated():
            if self.path.exists():
                # What is damaged cannot be opened, and need not be waited for.
                with contextlib.suppress(duckdb.Error), self._connect():
                    pass
            _log_of(self.path).unlink(missing_ok=True)  # of the file that goes: beside another one it is an error
            os.replace(other, self.path)
        self._ledger = None

    def append(self, tables: Mapping[str, pa.Table], entries: Sequence[Entry]) -> bool:
        """Write rows and the ledger entries they come from, all or nothing, durably.

        False: the file is not as this writer left it (another recorder, or someone deleted it). Nothing was written,
        and `ledger()` is to be asked again. Raises `DatabaseBusy` or `DatabaseError`, with nothing written.
        """
        ledger = self.ledger() if self._ledger is None else self._ledger
        self._ledger = None  # until the commit has returned, only the file knows
        with self._translated(), self._open() as connection:
            connection.begin()
            if _number(connection, f"SELECT count(*) FROM {LEDGER}") != len(ledger):
                return False
            for name, table in {**tables, LEDGER: _ledger_table(entries)}.items():
                connection.register("incoming", table)
                connection.execute(f"INSERT INTO {name} BY NAME SELECT * FROM incoming")
                connection.unregister("incoming")
            connection.commit()
        for entry in entries:
            ledger.add(entry)
        self._ledger = ledger
        return True

    @contextlib.contextmanager
    def _translated(self) -> Generator[None, None, None]:
        """DuckDB's and the system's errors as ours."""
        try:
            yield
        except duckdb.Error as error:
            advice = "make room on its disk" if trouble_of(error) is Trouble.FULL else "the run folder still has it all"
            raise DatabaseError(f"{self.path} cannot be written: {error}; {advice}") from error
        except OSError as error:
            raise DatabaseError(f"{self.path} cannot be written: {error}; make its folder writable") from error

    def _read_ledger(self) -> Ledger:
        with self._open() as connection:
            entries = connection.execute(f"SELECT stream, number FROM {LEDGER} ORDER BY ALL")
            return Ledger(Entry(*row) for row in _rows(entries))

    def _open(self) -> duckdb.DuckDBPyConnection:
        """A connection to a file of our schema."""
        if not self.path.exists():
            self._create()
        connection = self._connect()
        version = _version(connection)
        if version < VERSION:
            connection.close()
            self._set_aside(f"version-{version}")
            self._create()
            connection = self._connect()
        elif version > VERSION:
            connection.close()
            raise DatabaseError(
                f"{self.path} has schema version {version}, this agrpo writes {VERSION}: upgrade agrpo, or delete the "
                "file to have it built again"
            )
        connection.execute("SET threads = 1")  # training needs the others
        return connection

    def _connect(self) -> duckdb.DuckDBPyConnection:
        return open_patiently(self.path, read_only=False, deadline_seconds=self.deadline_seconds)

    def _create(self) -> None:
        """Put a whole, empty database in place: whoever opens the path finds every table and view."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            with duckdb.connect(str(draft)) as connection:
                create_all(connection)
                connection.execute("CHECKPOINT")
            _log_of(self.path).unlink(missing_ok=True)  # of a file that is gone; beside another one it is an error
            with contextlib.suppress(FileExistsError):
                os.link(draft, self.path)
        finally:
            draft.unlink(missing_ok=True)

    def _set_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.{why}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        os.replace(self.path, aside)
        with contextlib.suppress(FileNotFoundError):
            os.replace(_log_of(self.path), _log_of(aside))
        logger.warning("%s is built again from the run folder; the old file is %s, delete it", self.path, aside)


def _log_of(path: Path) -> Path:
    """DuckDB's write-ahead log of a file."""
    return path.with_name(f"{path.name}.wal")


def _version(connection: duckdb.DuckDBPyConnection) -> int:
    """0: a file of before there were versions, or one that is not ours."""
    try:
        return _number(connection, "SELECT version FROM schema_info")
    except duckdb.CatalogException:
        return 0


def _number(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    """The one number a query gives, all of it fetched: a result left unfinished blocks the connection."""
    ((number,),) = connection.execute(sql).fetchall()
    return number


def _rows(result: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, int]]:
    while chunk := result.fetchmany(100_000):
        yield from chunk


def _ledger_table(entries: Sequence[Entry]) -> pa.Table:
    return pa.table(
        {
            "stream": pa.array([entry.stream for entry in entries], pa.string()),
            "number": pa.array([entry.number for entry in entries], pa.int64()),
        }
    )
