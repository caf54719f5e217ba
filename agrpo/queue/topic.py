"""A topic: numbered slots, each written once. The group of a ticket is the slot of that number in every topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agrpo.queue.shards import Shards, ticket_of

if TYPE_CHECKING:
    import pyarrow as pa

    from agrpo.queue.filesystems import Filesystem


class Topic:
    """Slots under one name of a run, in their place or archived.

    Slot numbers are tickets; they are never derived from what exists, or a number would be used again once its slot is
    archived and unlinked.
    """

    def __init__(self, filesystem: Filesystem, name: str) -> None:
        self.name = name
        self.shards = Shards(filesystem, name, r"\.arrow")

    def publish(self, number: int, data: bytes | memoryview | pa.Buffer) -> bool:
        """Write the slot, durably. False: another worker did the same job; its bytes stand, and these are to be dropped."""
        return self.shards.put(_name(number), data)

    def read(self, number: int) -> pa.Buffer | None:
        """The slot's bytes, or None while it is not published. Mapped where the run is local and they are not archived."""
        return self.shards.get(_name(number))

    def demand(self, number: int) -> pa.Buffer:
        """The bytes of a slot that is known to be written. Raises `StoreLostWrites` that names what is missing."""
        data = self.read(number)
        if data is None:
            raise self.shards.archive.lost(number)
        return data

    def exists(self, number: int) -> bool:
        """Whether the slot is published; one listing of its shard, whatever its size."""
        return self.shards.holds(_name(number))

    def numbers(self, start: int = 0) -> list[int]:
        """The published slots from `start` on, ascending. Shards wholly below `start` are not listed."""
        return [ticket_of(name) for name in self.shards.names(start)]

    def key(self, number: int) -> str:
        """Where the slot lies in the run until it is archived."""
        return self.shards.key(_name(number))


def _name(number: int) -> str:
    return f"{number:012d}.arrow"
