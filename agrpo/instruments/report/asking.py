"""Questions to the database of a report: rows as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def ask(connection: DuckDBPyConnection, sql: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
    """The rows of a query, by column name. `values` take the places of `?`."""
    return connection.sql(sql, params=list(values)).to_arrow_table().to_pylist()


def ask_one(connection: DuckDBPyConnection, sql: str, values: Sequence[object] = ()) -> dict[str, Any]:
    """The only row of a query."""
    (row,) = ask(connection, sql, values)
    return row
