"""Archiving: what the queue holds below the recovery floor goes into the archive, and is unlinked once it is there.

Whether it was recorded does not matter: every reader finds it in a slot or in the archive. Nor does it matter who else
archives, or where one of them is killed. What is archived is unlinked, by whoever sees it first; a file is created once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

from agrpo.queue.archive.floors import archive_floor
from agrpo.queue.archive.reading import ArchiveFile
from agrpo.queue.shards import Shards, ticket_of

if TYPE_CHECKING:
    from agrpo.queue.archive.chunk import StoredObject
    from agrpo.queue.run_folder import RunFolder

logger = logging.getLogger(__name__)

TICKETS_PER_FILE = 256
"""Files end at multiples of it, so that two archivers make the same ones."""
MOST_BYTES = 64 * 2**20
"""Of the objects of one file; more tickets are split over several."""


class Archiver:
    """Archives one run, some at a time."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._queues = [folder.groups.shards, folder.scored.shards, folder.claims.shards]
        self._swept = dict.fromkeys((queue.folder for queue in self._queues), 0)
        """Tickets below it are archived and unlinked, but for what a late writer brought."""

    def archive(self) -> int:
        """Archive the oldest 256 tickets that lie wholly below the recovery floor; the number of objects unlinked."""
        stop = archive_floor(self._folder) // TICKETS_PER_FILE * TICKETS_PER_FILE
        return sum(self._archive(queue, stop) for queue in self._queues if self._swept[queue.folder] < stop)

    def archive_all(self, has_ended: Callable[[], bool] = lambda: True) -> int:
        """Archive whatever lies in the queue, while the run `has_ended`; the number of objects unlinked."""
        parts = ((queue, names) for queue in self._queues for names in _by_file(queue.lying()))
        return sum(self._move(queue, names) for queue, names in takewhile(lambda _: has_ended(), parts))

    def _archive(self, queue: Shards, stop: int) -> int:
        first = next(_by_file(queue.lying(self._swept[queue.folder], stop)), None)
        if first is None:
            self._swept[queue.folder] = stop
            return 0
        return self._move(queue, first)

    def _move(self, queue: Shards, names: list[str]) -> int:
        """Archive what is not archived of these objects, then unlink what is."""
        queue.archive.refresh()
        for part in _parts(queue, [name for name in names if not queue.archive.knows(name)]):
            self._write(queue, part)
        queue.archive.refresh()
        archived = [name for name in names if queue.archive.knows(name)]
        for name in archived:
            queue.filesystem.delete(queue.key(name))
        return len(archived)

    def _write(self, queue: Shards, objects: list[StoredObject]) -> None:
        from agrpo.queue.archive.chunk import encode

        file = ArchiveFile(objects[0].ticket, objects[-1].ticket)
        data = encode(objects)
        queue.archive.refresh()
        # What another archiver has unlinked since may have been written anew by one that slept: theirs stands.
        if any(queue.archive.knows(stored.name) for stored in objects):
            return
        if queue.filesystem.put(queue.archive.key(file), data):
            logger.info(
                "%s of tickets %d to %d archived: %.1f MB in %.1f MB",
                *(queue.folder, file.first, file.last, sum(stored.data.size for stored in objects) / 1e6),
                data.size / 1e6,
            )


def _by_file(names: list[str]) -> Iterator[list[str]]:
    for _, found in groupby(names, key=lambda name: ticket_of(name) // TICKETS_PER_FILE):
        yield list(found)


def _parts(queue: Shards, names: list[str]) -> Iterator[list[StoredObject]]:
    """The objects, a file's worth at a time. All tries at a ticket are in one file."""
    from agrpo.queue.archive.chunk import StoredObject

    part: list[StoredObject] = []
    size = 0
    for _, tries in groupby(names, key=ticket_of):
        for name in tries:
            data = queue.filesystem.get(queue.key(name))
            if data is not None:  # else another archiver was here
                part.append(StoredObject(name, data))
                size += data.size
        if size >= MOST_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
