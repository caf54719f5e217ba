"""What to do about SQL that DuckDB refuses: the nearest name, and where all names are listed."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict

import duckdb

WHERE_NAMES_ARE = (
    "`FROM schema_relations` lists tables and views, `FROM schema_columns` their columns; docs/sql.md has all"
)

_RELATION = re.compile(r"Table with name (\S+) does not exist")
_COLUMN = re.compile(r'(?:Referenced column|have a column named|Table ".+" does not have a column named) "([^"]+)"')


def advised(connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> str:
    """The error in DuckDB's words, with the nearest names of this database."""
    message = str(error)
    if relation := _RELATION.search(message):
        found = _near(relation[1], _relations(connection))
        return "\n".join([message.partition("\nDid you mean")[0], *found, WHERE_NAMES_ARE])
    if column := _COLUMN.search(message):
        found = _near(column[1].rpartition(".")[2], _columns(connection))
        return "\n".join([message, *found, WHERE_NAMES_ARE])
    return f"{message}\n{WHERE_NAMES_ARE}"


def _near(name: str, known: dict[str, str]) -> list[str]:
    """A sentence with the nearest names and where each is, if any is near."""
    near = difflib.get_close_matches(name.lower(), known, 3, 0.6) or [own for own in known if name.lower() in own][:3]
    return [f"did you mean {' or '.join(f'{own}{known[own]}' for own in near)}?"] if near else []


def _relations(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    rows = connection.execute("SELECT table_name FROM duckdb_columns() WHERE NOT internal ORDER BY ALL").fetchall()
    return dict.fromkeys((name for (name,) in rows), "")


def _columns(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Columns with the first relations that have them."""
    sql = "SELECT column_name, table_name FROM duckdb_columns() WHERE NOT internal ORDER BY ALL"
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for column, relation in connection.execute(sql).fetchall():
        homes[column].append(relation)
    return {column: f" (in {', '.join(found[:3])}{', …' if len(found) > 3 else ''})" for column, found in homes.items()}
