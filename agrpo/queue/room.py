"""Room: how much of its disk a run takes, and whether it may take more."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.errors import StoreFull

if TYPE_CHECKING:
    from agrpo.queue.run_folder import RunFolder


COUNT_SECONDS = 5.0
"""Between two counts of the bytes a run takes; longer where its folder holds many files."""
SHARE = 0.01
"""Of the time: the most that counting takes."""


class Room:
    """What a run may take of the disk that its folder is on, or its database where the folder is in an object store."""

    def __init__(self, folder: RunFolder, *, max_bytes: int | None, min_free_bytes: int) -> None:
        self._place = folder.local
        self._url = folder.url
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._count_at = -math.inf

    def check(self) -> None:
        """Raise `StoreFull` where the run may take no more. All that was written is whole and stays.

        To be called every second or so: what the run takes is counted more seldom than what is free.
        """
        free = _free_bytes(self._place)
        if free < self._min_free_bytes:
            raise StoreFull(
                f"{_size(free)} are free on the disk of {self._place}, and {_size(self._min_free_bytes)} are to stay free "
                f"(store.min_free_bytes). What was written is whole: make room there, then `agrpo resume {self._url}`"
            )
        if self._max_bytes is not None and time.monotonic() >= self._count_at:
            began = time.monotonic()
            self._check_taken(self._max_bytes)
            now = time.monotonic()
            self._count_at = now + max(COUNT_SECONDS, (now - began) / SHARE)

    def _check_taken(self, most: int) -> None:
        taken = taken_bytes(self._place)
        if sum(taken.values()) > most:
            largest = ", ".join(f"{name} {_size(size)}" for name, size in taken.most_common(4))
            raise StoreFull(
                f"{self._place} takes {_size(sum(taken.values()))} ({largest}), and may take {_size(most)} "
                f"(store.max_bytes). What was written is whole: `agrpo resume {self._url}` goes on once it takes less, or "
                "with a higher cap by `--set store.max_bytes=…`"
            )


def taken_bytes(folder: Path) -> Counter[str]:
    """Bytes of the files below a folder, by the first part of their path."""
    taken: Counter[str] = Counter()
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            taken[entry.name] += sum(taken_bytes(Path(entry.path)).values())
        else:
            taken[entry.name] += _bytes_of(entry)
    return taken


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """None of a folder that was removed meanwhile."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _bytes_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _free_bytes(folder: Path) -> int:
    """What users may still write there."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"
