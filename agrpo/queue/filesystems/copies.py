"""Local copies of folders published elsewhere, and local folders to build them in, in one temporary folder per process.

A killed process cannot clean up. So each holds a lock on its folder, which dies with it, and the next process to make
one removes old folders that nobody holds.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from agrpo.queue.filesystems.unfinished import hold, sweep

_PREFIX = "agrpo-copies-"


class LocalCopies:
    """Copies by key. Thread-safe; they are gone when the process ends."""

    def __init__(self) -> None:
        self._copies: dict[str, Path] = {}
        self._lock = threading.RLock()

    def get(self, key: str, fill: Callable[[Path], None]) -> Path:
        """The copy of `key`; the first time, `fill` writes its files into the folder it is given."""
        with self._lock:
            if key not in self._copies:
                folder = new_folder()
                try:
                    fill(folder)
                except BaseException:
                    shutil.rmtree(folder)
                    raise
                self._copies[key] = folder
            return self._copies[key]

    def kept(self) -> list[str]:
        """The keys that have a copy."""
        with self._lock:
            return list(self._copies)

    def drop(self, key: str) -> None:
        """Remove the copy of `key`, if there is one."""
        with self._lock:
            folder = self._copies.pop(key, None)
            if folder is not None:
                shutil.rmtree(folder)


def new_folder() -> Path:
    """A new, empty folder, the caller's own until the process ends."""
    with _lock:
        if os.getpid() not in _folders:  # a forked child makes its own
            _folders[os.getpid()] = _hold_folder()
        folder = _folders[os.getpid()] / uuid4().hex
    folder.mkdir()
    return folder


_lock = threading.Lock()
_folders: dict[int, Path] = {}


def _hold_folder() -> Path:
    sweep(Path(tempfile.gettempdir()), f"{_PREFIX}*")
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    hold(os.open(folder, os.O_RDONLY))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child inherits the parent's exit
        shutil.rmtree(folder)
