"""One look at a run: it reads, notes what does not balance, and goes on. A damaged file is a finding, never the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from agrpo.audit.balance import Finding, Line
from agrpo.audit.columns import rows_of
from agrpo.database.batch import Batch
from agrpo.database.ledger import Entry
from agrpo.queue.run_folder import RunFolder
from agrpo.records.documents import load

T = TypeVar("T")

UNREADABLE = (ValueError, KeyError, TypeError)
"""What reading a damaged file raises: `RecordError`, which is a ValueError, and the others where it has no checksum."""

Tell = Callable[[str, int, int], None]
"""Hears what is looked at, how much of it is done, and how much there is."""


class Look:
    """What one look has found so far, and what it expects of the database."""

    def __init__(self, folder: RunFolder, tell: Tell) -> None:
        self.folder = folder
        self.tell = tell
        self.lines: list[Line] = []
        self.findings: list[Finding] = []
        self._known: set[Finding] = set()
        self.num_read = 0
        """Objects read whole."""
        self.unread: set[Entry] = set()
        """Records that are there and cannot be read, so that nothing is known of their rows."""
        self.rows: defaultdict[str, dict[Entry, list[tuple[Any, ...]]]] = defaultdict(dict)
        """What the database's tables should hold of each record, in the columns that `audit.rows` compares."""

    def find(self, about: str, told: str) -> None:
        self.note(Finding(about=about, told=told))

    def note(self, finding: Finding) -> None:
        """Take a finding up, once."""
        if finding not in self._known:
            self._known.add(finding)
            self.findings.append(finding)

    def line(self, what: str, number: int, told: str = "") -> None:
        self.lines.append(Line(what=what, number=number, told=told))

    def read(self, key: str, reader: Callable[[], T | None], entry: Entry | None = None) -> T | None:
        """What the object holds; None where it is gone, or cannot be read, which is a finding about its file.

        `entry`: the record's name in the database's ledger.
        """
        try:
            found = reader()
        except UNREADABLE as error:
            self.find(key, told_by(error))
            if entry is not None:
                self.unread.add(entry)
            return None
        self.num_read += found is not None
        return found

    def document(self, cls: type[T], key: str, entry: Entry | None = None) -> T | None:
        """The record in a document; None where it is gone, or cannot be read."""
        data = self.folder.filesystem.get(key)
        return None if data is None else self.read(key, lambda: load(cls, memoryview(data)), entry)

    def cannot_read(self, kind: str, number: int) -> bool:
        """Whether a record of this kind and number is there and cannot be read, whoever wrote it."""
        return any(entry.number == number and entry.stream.startswith(f"{kind}/") for entry in self.unread)

    def expect(self, entry: Entry, **tables: Iterable[tuple[Any, ...]]) -> None:
        """The rows that the record of this entry becomes, by table."""
        for table, rows in tables.items():
            self.rows[table][entry] = list(rows)

    def expect_record(self, entry: Entry, add: Callable[[Batch, T], None], record: T) -> None:
        """The rows that the recorder makes of a record by `add`."""
        batch = Batch()
        add(batch, record)
        self.expect(entry, **{table: rows_of(table, rows) for table, rows in batch.tables().items()})


def told_by(error: Exception) -> str:
    """What an error of reading says, of whichever class."""
    known = type(error).__module__.startswith("agrpo.")
    return str(error) if known else f"cannot be read ({error!r}); the file is damaged or not agrpo's"


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
