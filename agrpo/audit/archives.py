"""What of the queue is listed: slots, claims and archive files. A file that cannot be opened is a finding, not the end."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agrpo.audit.look import UNREADABLE, Look, told_by
from agrpo.errors import StoreLostWrites
from agrpo.queue.archive.chunk import Chunk
from agrpo.queue.archive.reading import ArchiveFile
from agrpo.queue.shards import Shards, ticket_of

_NAME = re.compile(r"([0-9]{12})-([0-9]{12})\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The tickets of one queue."""

    tickets: set[int]
    damaged: list[ArchiveFile]
    """Nobody knows which of their tickets these held."""

    def __contains__(self, ticket: int) -> bool:
        """Whether it is there, or may be in a file that cannot be opened."""
        return ticket in self.tickets or any(file.first <= ticket <= file.last for file in self.damaged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Which tickets there are, and how far each has come, by what is listed."""

    claimed: Listed
    generated: Listed
    scored: Listed

    @classmethod
    def of(cls, look: Look) -> Written:
        """Listed from the end of a group's way to its beginning, so that a score has its group and a group its claim."""
        folder = look.folder
        scored, groups = _listed(look, folder.scored.shards), _listed(look, folder.groups.shards)
        return cls(claimed=_listed(look, folder.claims.shards), generated=groups, scored=scored)

    @property
    def tickets(self) -> set[int]:
        return self.claimed.tickets | self.generated.tickets | self.scored.tickets


def _listed(look: Look, queue: Shards) -> Listed:
    try:
        return Listed(tickets={ticket_of(name) for name in queue.names(0)}, damaged=[])
    except (StoreLostWrites, *UNREADABLE):
        return _one_by_one(look, queue)


def _one_by_one(look: Look, queue: Shards) -> Listed:
    """File by file, where one of them cannot be opened."""
    names, damaged = queue.lying(), list[ArchiveFile]()
    for name in look.folder.filesystem.list(queue.archive.folder):
        if (parts := _NAME.fullmatch(name)) is None:
            continue
        key = f"{queue.archive.folder}/{name}"
        data = look.folder.filesystem.get(key)
        try:
            names += [] if data is None else Chunk(data, f"{look.folder.url}/{key}").names
        except UNREADABLE as error:
            look.find(key, told_by(error))
            damaged.append(ArchiveFile(*map(int, parts.groups())))
    return Listed(tickets={ticket_of(name) for name in names}, damaged=damaged)
