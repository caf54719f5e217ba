"""A topic: numbered slots, each written once. The group of a ticket is the slot of that number in every topic."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from agrpo.queue.filesystems import Filesystem

NUMBERS_PER_SHARD = 1000
"""Slots, or tickets, in one folder: what a listing costs."""

_ENDING = ".arrow"


@dataclass(frozen=True, slots=True)
class Topic:
    """Slots under one name of a run.

    Slot numbers are tickets; they are never derived from what exists, or a number would be used again once its slot is
    archived and unlinked.
    """

    filesystem: Filesystem
    name: str

    def publish(self, number: int, data: bytes | memoryview | pa.Buffer) -> bool:
        """Write the slot, durably. False: another worker did the same job; its bytes stand, and these are to be dropped."""
        return self.filesystem.put(self.key(number), data)

    def read(self, number: int) -> pa.Buffer | None:
        """The slot's bytes, mapped where the run is local, or None while it is not published."""
        return self.filesystem.get(self.key(number))

    def exists(self, number: int) -> bool:
        """Whether the slot is published; one listing of its shard, whatever its size."""
        shard, _, name = self.key(number).rpartition("/")
        return name in self.filesystem.list(shard)

    def numbers(self, start: int = 0) -> list[int]:
        """The published slots from `start` on, ascending. Shards wholly below `start` are not listed."""
        first = f"{start:012d}"  # names are as long as each other and sort as their numbers
        found: list[int] = []
        for shard in self.filesystem.list(self.name):
            if shard >= shard_of(start):
                names = self.filesystem.list(f"{self.name}/{shard}")
                found += [int(name[: -len(_ENDING)]) for name in names[bisect_left(names, first) :]]
        return found

    def key(self, number: int) -> str:
        """Where the slot lies in the run."""
        return f"{self.name}/{shard_of(number)}/{number:012d}{_ENDING}"


def shard_of(number: int) -> str:
    """The folder that holds a number. Names sort as numbers do."""
    return f"{number // NUMBERS_PER_SHARD:06d}"
