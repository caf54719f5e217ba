"""Upkeep: keeping a run's folder small, and the run from filling its disk. It knows nothing of the database."""

from __future__ import annotations

import logging
import time

from agrpo.config import StoreSection
from agrpo.queue.archive.archiving import Archiver
from agrpo.queue.room import Room
from agrpo.queue.run_folder import RunFolder

logger = logging.getLogger(__name__)

SECONDS = 2.0
"""Between two looks; longer where they are costly."""
SHARE = 0.02
"""Of one core: the most that upkeep takes, while `LONGEST_SECONDS` allows it."""
LONGEST_SECONDS = 10.0


class Upkeep:
    """One process's, done a little at a time."""

    def __init__(self, folder: RunFolder, store: StoreSection) -> None:
        self._folder = folder
        self._archiver = Archiver(folder)
        self._room = Room(folder, max_bytes=store.max_bytes, min_free_bytes=store.min_free_bytes)
        self._due_at = 0.0

    def due_in(self) -> float:
        """Seconds until `work` has something to do."""
        return max(self._due_at - time.monotonic(), 0.0)

    def work(self) -> int:
        """If it is time, archive some tickets and see whether there is room; the number of objects archived.

        Raises `StoreFull` where there is no room.
        """
        if self.due_in() > 0:
            return 0
        began = time.thread_time()
        archived = self._archiver.archive()
        self._room.check()
        cost = time.thread_time() - began
        self._due_at = time.monotonic() + max(SECONDS, min(cost / SHARE, LONGEST_SECONDS))
        return archived

    def finish(self) -> None:
        """Where the run has its last step, archive all that its queue still holds."""
        if self._has_ended():
            logger.info("archived the last %d objects of the queue", self._archiver.archive_all(self._has_ended))

    def _has_ended(self) -> bool:
        """One that was asked long ago finds, maybe, that the run goes on."""
        return self._folder.has_finished(self._folder.hint())
