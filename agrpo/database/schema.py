"""The schema of `run.duckdb`: its SQL, its version, and its tables as Arrow schemas."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import duckdb
import pyarrow as pa

from agrpo.database.comments import explain_columns

VERSION = 15
"""Raised with every change of the SQL files; a file of an older version is built again, not migrated."""

LEDGER = "ingest"
"""The table that says which records are in."""

_TABLES = "schema.sql"
_FILES = (_TABLES, "views.sql", "step_metrics.sql")


def create_all(connection: duckdb.DuckDBPyConnection) -> None:
    """Make every table and view of the schema, with their comments, in an empty database."""
    connection.begin()
    for name in _FILES:
        connection.execute(_sql(name))
    explain_columns(connection)
    connection.execute("INSERT INTO schema_info VALUES (?)", [VERSION])
    connection.commit()


@cache
def table_schemas() -> dict[str, pa.Schema]:
    """The columns of every table that holds rows of a run, as the Arrow types that fill them without a cast.

    JSON is a string here. Nested fields are nullable, as SQL's are.
    """
    with duckdb.connect() as connection:
        connection.execute(_sql(_TABLES))  # the views take five times as long, and hold no rows
        names = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE table_name <> 'schema_info'"
        ).fetchall()
        return {name: connection.table(name).limit(0).to_arrow_table().schema for (name,) in names}


def _sql(name: str) -> str:
    return files("agrpo.database").joinpath(name).read_text("utf-8")
