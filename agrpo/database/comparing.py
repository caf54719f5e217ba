"""Comparing two databases row for row, whatever order their rows are in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb

from agrpo.database.queries import asking


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One table of two databases."""

    table: str
    num_rows: int
    """In the new one."""
    only_old: int = 0
    """Rows that the new one lacks, or holds less often."""
    only_new: int = 0
    columns: tuple[str, ...] = ()
    """That differ. Empty where the rows are the same, or where one side has more of them."""

    @property
    def identical(self) -> bool:
        return self.only_old == self.only_new == 0


def compare(old: Path, new: Path, tell: Callable[[int, int], None] = lambda *_: None) -> list[Comparison]:
    """Every table, by name. `tell` hears how many are done, and of how many.

    Raises `DatabaseError` where one of them cannot be read, or is of another schema version than this agrpo's.
    """
    with asking(old):  # says what is wrong with it; attached, it would not
        pass
    with asking(new) as connection:
        tables = [name for (name,) in connection.execute(_TABLES).fetchall()]
        connection.execute(f"ATTACH '{str(old).replace(chr(39), chr(39) * 2)}' AS old (READ_ONLY)")
        found: list[Comparison] = []
        for table in tables:
            found.append(_compare(connection, table))
            tell(len(found), len(tables))
        connection.execute("DETACH old")
    return found


_TABLES = "SELECT table_name FROM duckdb_tables() WHERE NOT internal ORDER BY ALL"


def _compare(connection: duckdb.DuckDBPyConnection, table: str) -> Comparison:
    before, after = (_hashed(connection, name, "whole") for name in (f"old.{table}", table))
    num_rows = _number(connection, f"SELECT count(*) FROM {table}")
    if before == after:
        return Comparison(table=table, num_rows=num_rows)
    only_old, only_new = (
        _number(connection, f"SELECT count(*) FROM (FROM {left} EXCEPT ALL FROM {right})")
        for left, right in ((f"old.{table}", table), (table, f"old.{table}"))
    )
    columns = _differing(connection, table) if only_old == only_new else ()
    return Comparison(table=table, num_rows=num_rows, only_old=only_old, only_new=only_new, columns=columns)


def _differing(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[str, ...]:
    names = [name for (name, *_) in connection.execute(f"DESCRIBE {table}").fetchall()]
    return tuple(
        name
        for name in names
        if _hashed(connection, f"old.{table}", f'whole."{name}"') != _hashed(connection, table, f'whole."{name}"')
    )


def _hashed(connection: duckdb.DuckDBPyConnection, table: str, what: str) -> tuple[int, int | None]:
    """Number of rows, and a hash of them that does not depend on their order."""
    ((count, hashed),) = connection.execute(
        f"SELECT count(*), sum(hash({what})::HUGEINT) FROM {table} AS whole"
    ).fetchall()
    return count, hashed


def _number(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    ((number,),) = connection.execute(sql).fetchall()
    return number
