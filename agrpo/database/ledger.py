"""The ledger: which records of the run folder are in the database already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Entry(NamedTuple):
    """One record of the run folder."""

    stream: str
    """What kind of record it is and who wrote it, such as `groups` or `plans/3`."""
    number: int
    """Ticket, step or number in the stream."""


class Ledger:
    """A set of entries that stays small while the numbers of a stream have no gaps."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._floor: dict[str, int] = defaultdict(int)
        self._above: dict[str, set[int]] = defaultdict(set)
        self._highest: dict[str, int] = {}
        self._size = 0
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, entry: Entry) -> bool:
        return entry.number < self._floor[entry.stream] or entry.number in self._above[entry.stream]

    def floor(self, stream: str) -> int:
        """The first number that is missing: everything below it is recorded."""
        return self._floor[stream]

    def highest(self, stream: str) -> int | None:
        """The highest number that is recorded; None where nothing is."""
        return self._highest.get(stream)

    def missing(self, stream: str, numbers: Iterable[int]) -> list[Entry]:
        """Entries for the numbers that are not recorded, in the order given."""
        return [entry for number in numbers if (entry := Entry(stream, number)) not in self]

    def add(self, entry: Entry) -> None:
        assert entry not in self, f"{entry.stream} {entry.number} is recorded twice"
        above, floor = self._above[entry.stream], self._floor[entry.stream]
        above.add(entry.number)
        while floor in above:
            above.remove(floor)
            floor += 1
        self._floor[entry.stream] = floor
        self._highest[entry.stream] = max(entry.number, self._highest.get(entry.stream, entry.number))
        self._size += 1
