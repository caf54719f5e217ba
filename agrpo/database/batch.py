"""A batch: the rows of some records of the run folder, on their way into one transaction."""

from __future__ import annotations

import contextlib
import ctypes
from collections import defaultdict
from collections.abc import Callable, Mapping

import pyarrow as pa

from agrpo.database.ledger import Entry
from agrpo.database.schema import table_schemas

Row = dict[str, object]
"""One row by column name; a column left out is NULL."""
Convert = Callable[[pa.Table], Mapping[str, pa.Table]]
"""Makes the rows of the database's tables, by table, from what many slots of one kind hold."""

MOST_BYTES = 64 * 2**20
MOST_ROWS = 50_000


class Batch:
    """Rows and the ledger entries they come from."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)
        self._tables: defaultdict[str, list[pa.Table]] = defaultdict(list)
        self._slots: defaultdict[Convert, list[pa.Table]] = defaultdict(list)
        self._num_rows = 0
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether one transaction should hold no more."""
        return self._num_bytes >= MOST_BYTES or max(self._num_rows, len(self.entries)) >= MOST_ROWS

    def add_rows(self, table: str, rows: list[Row]) -> None:
        self._rows[table] += rows
        self._num_rows += len(rows)

    def add_table(self, table: str, rows: pa.Table) -> None:
        """Rows that are in Arrow already. All that are added to one table have the same columns."""
        self._tables[table].append(rows)
        self._num_rows += len(rows)
        self._num_bytes += rows.nbytes

    def add_slot(self, slot: pa.Table, num_bytes: int, convert: Convert) -> None:
        """What a slot holds, one row per rollout; all that share `convert` are converted together, by `tables`."""
        self._slots[convert].append(slot)
        self._num_rows += len(slot)
        self._num_bytes += num_bytes

    def tables(self) -> dict[str, pa.Table]:
        """All rows, by table."""
        built = {name: pa.Table.from_pylist(rows, table_schemas()[name]) for name, rows in self._rows.items() if rows}
        built |= {name: pa.concat_tables(tables) for name, tables in self._tables.items()}
        for convert, slots in self._slots.items():
            built |= convert(pa.concat_tables(slots))
        return built


def give_back() -> None:
    """Return to the system what batches took: the allocators would keep it for the next one of their size."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)
