"""Reading one queue folder's archive: which objects it holds, and their bytes."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, NamedTuple

from agrpo.errors import StoreLostWrites
from agrpo.queue.naming import ours

if TYPE_CHECKING:
    import pyarrow as pa

    from agrpo.queue.archive.chunk import Chunk
    from agrpo.queue.filesystems import Filesystem

_ENDING = ".parquet"
_NAME = re.compile(r"[0-9]{12}-[0-9]{12}\.parquet")


class ArchiveFile(NamedTuple):
    """One file of an archive, by the first and the last ticket it holds."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.first:012d}-{self.last:012d}{_ENDING}"


class Archive:
    """What is archived of `folder`. Files never change, so what one holds is read once; one is kept open. Thread-safe.

    They are listed before the first question: what was archived by then is found here, whatever lies elsewhere.
    """

    def __init__(self, filesystem: Filesystem, folder: str) -> None:
        self.folder = f"archive/{folder}"
        self._filesystem = filesystem
        self._listed: list[str] | None = None
        self._files: list[ArchiveFile] = []
        self._held: dict[ArchiveFile, list[str]] = {}
        self._open: tuple[ArchiveFile, Chunk] | None = None
        self._lock = threading.RLock()

    def refresh(self) -> None:
        """List the files again. Between two listings the archive is what the last one found."""
        names = self._filesystem.list(self.folder)
        with self._lock:
            if names != self._listed:
                where = f"{self._filesystem.url}/{self.folder}"
                self._listed, self._files = names, [_file(name) for name in ours(names, _NAME, where)]

    def knows(self, name: str) -> bool:
        """Whether the object was archived when the files were listed last."""
        return self._file_of(name) is not None

    def holds(self, name: str) -> bool:
        """Whether the object is archived."""
        if not self.knows(name):
            self.refresh()
        return self.knows(name)

    def get(self, name: str) -> pa.Buffer | None:
        """The object's bytes as they were written; None where it was not archived when the files were listed last.

        Raises `RecordError` where the file is damaged.
        """
        with self._lock:
            file = self._file_of(name)
            return None if file is None else self._chunk(file).get(name)

    def names(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Names of the archived objects of tickets `start` to `stop`, ascending, as of the last listing."""
        self._list_once()
        first, last = f"{start:012d}", None if stop is None else f"{stop:012d}"
        with self._lock:
            files = [file for file in self._files if file.last >= start and (stop is None or file.first < stop)]
            held = [name for file in files for name in self._names(file)]
        return sorted({name for name in held if name >= first and (last is None or name < last)})

    def last_ticket(self) -> int | None:
        """The highest ticket that is archived; None where nothing is."""
        self.refresh()
        return max((file.last for file in self._files), default=None)

    def key(self, file: ArchiveFile) -> str:
        return f"{self.folder}/{file.name}"

    def lost(self, ticket: int) -> StoreLostWrites:
        """The error to raise where the object of a ticket was written and is found nowhere: it names what is missing."""
        self.refresh()
        covering = [self.key(file) for file in self._files if file.first <= ticket <= file.last]
        where = f"{covering[0]} does not hold it" if covering else f"expected it in {self._missing(ticket)}"
        return StoreLostWrites(
            f"{self.folder.removeprefix('archive/')} of ticket {ticket} was written to {self._filesystem.url} and is neither "
            f"there as a slot nor archived ({where}); bring the file back from a copy, then resume the run"
        )

    def _list_once(self) -> None:
        if self._listed is None:
            self.refresh()

    def _file_of(self, name: str) -> ArchiveFile | None:
        self._list_once()
        ticket = int(name[:12])
        with self._lock:
            covering = [file for file in self._files if file.first <= ticket <= file.last]
            return next((file for file in covering if name in self._names(file)), None)

    def _missing(self, ticket: int) -> str:
        """The file that held the ticket: archives of the other queues have the same ranges, unless files were too large."""
        for queue in self._filesystem.list("archive"):
            for name in self._filesystem.list(f"archive/{queue}"):
                if _NAME.fullmatch(name) and (file := _file(name)).first <= ticket <= file.last:
                    return self.key(file)
        before = max((file.last for file in self._files if file.last < ticket), default=-1)
        after = min((file.first for file in self._files if file.first > ticket), default=None)
        if after is None:
            return f"a file of {self.folder} that ends with ticket {ticket} or later"
        return self.key(ArchiveFile(before + 1, after - 1))

    def _names(self, file: ArchiveFile) -> list[str]:
        if file not in self._held:
            self._held[file] = self._chunk(file).names
        return self._held[file]

    def _chunk(self, file: ArchiveFile) -> Chunk:
        from agrpo.queue.archive.chunk import Chunk

        if self._open is None or self._open[0] != file:
            data = self._filesystem.get(self.key(file))
            if data is None:
                raise StoreLostWrites(
                    f"{self._filesystem.url}/{self.key(file)} is gone, with {self.folder.removeprefix('archive/')} of "
                    f"tickets {file.first} to {file.last}; bring the file back from a copy, then resume the run"
                )
            self._open = (file, Chunk(data, f"{self._filesystem.url}/{self.key(file)}"))
        return self._open[1]


def _file(name: str) -> ArchiveFile:
    first, _, last = name.removesuffix(_ENDING).partition("-")
    return ArchiveFile(int(first), int(last))
