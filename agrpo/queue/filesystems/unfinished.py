"""What is unfinished: held by a lock that dies with the process of its writer, and swept once nobody holds it.

Age alone does not tell that a writer is dead: a clock jumps, and a machine sleeps. What was begun on this machine and is
not held is swept at once. What another one began is swept after an hour, since its locks may not be seen here; age is
also all there is where a mount has no locks (NFS has none on folders).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
import weakref
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

from agrpo.queue.filesystems import ABANDONED_SECONDS

_HERE = blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
_MOMENT_SECONDS = 10.0
"""Within it, what was begun has its lock."""


def new_name() -> str:
    """A name that nothing else has, and that tells where it was given."""
    return f"{_HERE}-{uuid4().hex}"


class HeldFolders:
    """Folders that one writer fills. Each is held until it is released, removed, or nobody has this object any more."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}
        weakref.finalize(self, _close, self._held)

    def hold(self, folder: Path) -> None:
        """Keep every other process from sweeping the folder."""
        for path in [path for path in list(self._held) if not path.exists()]:
            self.release(path)
        self._held[folder] = os.open(folder, os.O_RDONLY)
        hold(self._held[folder])

    def release(self, folder: Path) -> None:
        descriptor = self._held.pop(folder, None)
        if descriptor is not None:
            os.close(descriptor)


def hold(descriptor: int) -> None:
    """Hold an open file or folder until it is closed."""
    with suppress(OSError):  # no locks here: its age is what protects it
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: Path, pattern: str = "*") -> None:
    """Remove what nobody holds."""
    for path in list(folder.glob(pattern)):
        with suppress(FileNotFoundError, PermissionError):  # someone else has swept it, or it is another user's
            age = time.time() - _last_change(path)
            if age > (_MOMENT_SECONDS if path.name.startswith(f"{_HERE}-") else ABANDONED_SECONDS):
                _remove_unheld(path, age)


def _remove_unheld(path: Path, age: float) -> None:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        held = _is_held(descriptor)
        if held is False or (held is None and age > ABANDONED_SECONDS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        os.close(descriptor)


def _is_held(descriptor: int) -> bool | None:
    """None where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return None
    return False


def _last_change(path: Path) -> float:
    """Unix seconds of the newest change to a file, or to anything in a folder."""
    return max(found.stat().st_mtime for found in (path, *path.rglob("*")))


def _close(held: dict[Path, int]) -> None:
    for descriptor in held.values():
        os.close(descriptor)
