"""A queue folder: objects named after tickets, a thousand tickets to a shard, and what was archived of them.

An object is archived before it is unlinked, so whoever looks among the objects first and in the archive then finds it.
Shards stay when they are empty: one is a folder for every thousand tickets.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING

from agrpo.queue.archive.reading import Archive
from agrpo.queue.naming import ours

if TYPE_CHECKING:
    import pyarrow as pa

    from agrpo.queue.filesystems import Filesystem

TICKETS_PER_SHARD = 1000
"""Tickets whose objects lie in one folder: what a listing costs."""
DIGITS = 12
"""Every name begins with its ticket, so names sort as tickets do."""
_SHARD = re.compile("[0-9]{6,}")


class Shards:
    """The objects under one name of a run. Thread-safe, as its filesystem is."""

    def __init__(self, filesystem: Filesystem, folder: str, ending: str) -> None:
        """`ending`: what follows the ticket in a name, as a pattern."""
        self.filesystem = filesystem
        self.folder = folder
        self._name = re.compile(f"[0-9]{{{DIGITS}}}{ending}")
        self.archive = Archive(filesystem, folder)

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """Write the object, durably. False: it was written before; its bytes stand, archived or not."""
        if self.archive.knows(name) or not self.filesystem.put(self.key(name), data):
            return False
        # One that slept on while the object was archived and unlinked could create it a second time.
        if self.archive.holds(name):
            self.filesystem.delete(self.key(name))
            return False
        return True

    def get(self, name: str) -> pa.Buffer | None:
        """The object's bytes, mapped where the run is local and they are not archived; None where it is not written."""
        if self.archive.knows(name):
            return self.archive.get(name)
        data = self.filesystem.get(self.key(name))
        if data is None and self.archive.holds(name):
            return self.archive.get(name)
        return data

    def holds(self, name: str) -> bool:
        """Whether the object is written; one listing of its shard, whatever its size."""
        lies = name in self.filesystem.list(f"{self.folder}/{shard_of(ticket_of(name))}")
        return lies or self.archive.holds(name)

    def names(self, start: int) -> list[str]:
        """Names from ticket `start` on, ascending.

        The archive is listed the first time, and where `start` itself does not lie here.
        """
        lying = self.lying(start)
        if not lying or ticket_of(lying[0]) != start:
            self.archive.refresh()
        archived = self.archive.names(start)
        return sorted({*archived, *lying}) if archived else lying

    def of_ticket(self, ticket: int) -> list[str]:
        """Names of one ticket, ascending."""
        first = f"{ticket:0{DIGITS}d}"
        listed = self.filesystem.list(f"{self.folder}/{shard_of(ticket)}")
        lying = [name for name in listed if name.startswith(first) and self._name.fullmatch(name)]
        if not lying:
            self.archive.refresh()
        return sorted({*self.archive.names(ticket, ticket + 1), *lying})

    def highest(self) -> int | None:
        """The highest ticket that ever had an object here."""
        shards = (self._in_shard(shard) for shard in reversed(self._shards()))
        lying = next((ticket_of(names[-1]) for names in shards if names), None)
        found = [ticket for ticket in (lying, self.archive.last_ticket()) if ticket is not None]
        return max(found, default=None)

    def lying(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Names of the objects of tickets `start` to `stop` that are not unlinked. Other shards are not listed."""
        first, last = f"{start:0{DIGITS}d}", None if stop is None else f"{stop:0{DIGITS}d}"
        found: list[str] = []
        for shard in self._shards():
            if shard >= shard_of(start) and (stop is None or shard <= shard_of(stop)):
                names = self._in_shard(shard)
                found += names[bisect_left(names, first) : None if last is None else bisect_left(names, last)]
        return found

    def key(self, name: str) -> str:
        """Where the object lies in the run until it is archived."""
        return f"{self.folder}/{shard_of(ticket_of(name))}/{name}"

    def _shards(self) -> list[str]:
        return ours(self.filesystem.list(self.folder), _SHARD, f"{self.filesystem.url}/{self.folder}")

    def _in_shard(self, shard: str) -> list[str]:
        folder = f"{self.folder}/{shard}"
        return ours(self.filesystem.list(folder), self._name, f"{self.filesystem.url}/{folder}")


def shard_of(ticket: int) -> str:
    """The folder that holds a ticket's object. Names sort as numbers do."""
    return f"{ticket // TICKETS_PER_SHARD:06d}"


def ticket_of(name: str) -> int:
    """The ticket of an object."""
    return int(name[:DIGITS])
