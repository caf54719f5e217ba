"""Printing: lines, and tables for people and for programs."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agrpo.visible import harmless

if TYPE_CHECKING:
    import pyarrow as pa


MOST_ROWS = 200
"""Of a table for people, whose columns are as wide as its widest cell: laying out thousands takes minutes."""
LONGEST_CELL = 400
"""Characters, likewise."""


class TableFormat(enum.StrEnum):
    """How rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class ListFormat(enum.StrEnum):
    """For people or for programs."""

    TABLE = "table"
    JSON = "json"


def say(line: str) -> None:
    """Print one line at once, also into a pipe."""
    print(harmless(line), flush=True)


def print_table(table: pa.Table, form: TableFormat | None = None) -> None:
    """Print the rows of a query. None: a table in a terminal, CSV elsewhere."""
    form = form or (TableFormat.TABLE if sys.stdout.isatty() else TableFormat.CSV)
    if form is TableFormat.JSON:
        print(json.dumps(table.to_pylist(), default=str, ensure_ascii=False))
    elif form is TableFormat.CSV:
        _print_csv(table)
    elif form is TableFormat.PARQUET:
        from pyarrow import parquet

        parquet.write_table(table, sys.stdout.buffer)
    else:
        shown = table.slice(0, MOST_ROWS)
        print_rows(table.column_names, [list(row.values()) for row in shown.to_pylist()])
        if len(table) > MOST_ROWS:
            say(f"the first {MOST_ROWS} of {len(table):,} rows; LIMIT asks for fewer, --format csv has all of them")


def print_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(*names)
    for row in rows:
        shown.add_row(*(Text(harmless(_short(_cell(value)))) for value in row))
    Console().print(shown)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _print_csv(table: pa.Table) -> None:
    import csv

    writer = csv.writer(sys.stdout)
    writer.writerow(table.column_names)
    writer.writerows([_cell(value) for value in row.values()] for row in table.to_pylist())


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
