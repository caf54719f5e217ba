"""A run in a local folder: an object is written aside, made durable, and linked into place in one step.

`os.rename` would replace an existing object in silence and an exclusive `open` would show a half-written one; `os.link`
does neither. The order is file, link, directory, so that what is confirmed survives a loss of power.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.errors import StoreError, StoreFull, StoreNotExclusive, StoreReadOnly
from agrpo.queue.filesystems import names_of
from agrpo.queue.filesystems.unfinished import HeldFolders, hold, new_name, sweep

if TYPE_CHECKING:
    import builtins

    import pyarrow as pa

_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


class LocalFilesystem:
    """A folder of a local disk, or of a network mount with hard links and close-to-open consistency (best effort)."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.url = str(self.root)
        self._unfinished = self.root / ".tmp"
        self._made: set[Path] = set()
        self._held = HeldFolders()
        if os.access(self._unfinished, os.W_OK):
            with _explained("delete", self._unfinished):
                sweep(self._unfinished)

    def put(self, key: str, data: bytes | memoryview | pa.Buffer, *, exclusive: bool = True) -> bool:
        target = self._path(key)
        with _explained("write", target):
            if exclusive and target.exists():
                return False
            unfinished = self._new_name()
            try:
                with _written(unfinished, data):
                    self._make_folder(target.parent)
                    published = _link(unfinished, target) if exclusive else _replace(unfinished, target)
            finally:
                unfinished.unlink(missing_ok=True)
            if published and exclusive:  # what is overwritten may be an older one after a loss of power, but whole
                _make_durable(target.parent)
            return published

    def get(self, key: str) -> pa.Buffer | None:
        import pyarrow as pa

        path = self._path(key)
        with _explained("read", path):
            try:
                with pa.memory_map(str(path)) as file:
                    return file.read_buffer()
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError:
                if path.is_dir():
                    return None
                raise

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _explained("delete", path), suppress(FileNotFoundError, NotADirectoryError):
            if not path.is_dir():
                path.unlink()
                return
            removed = self._new_name()
            path.rename(removed)
            shutil.rmtree(removed)

    def put_folder(self, key: str, folder: Path) -> bool:
        assert any(folder.iterdir()), f"{folder} is empty: a rename would replace an empty folder, so none is published"
        target = self._path(key)
        with _explained("write", target):
            published = not target.exists() and self._move(folder, target)
            if not published:
                shutil.rmtree(folder)
            self._held.release(folder)
            return published

    def local_folder(self, key: str) -> Path | None:
        path = self._path(key)
        with _explained("read", path):
            return path if path.is_dir() else None

    def forget(self, key: str) -> None:
        """What is published is read where it lies."""

    def scratch(self) -> Path:
        with _explained("write", self._unfinished):
            folder = self._new_name()
            folder.mkdir()
            self._held.hold(folder)
            return folder

    def list(self, prefix: str) -> builtins.list[str]:
        path = self._path(prefix)
        with _explained("read", path):
            try:
                return sorted(name for name in os.listdir(path) if name[0] != ".")
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*names_of(key))

    def _new_name(self) -> Path:
        """A name for something unfinished, on the same mount as all the rest."""
        self._make_folder(self._unfinished)
        return self._unfinished / new_name()

    def _make_folder(self, folder: Path) -> None:
        """Make the folder and those above it, durably.

        Each process confirms a folder once even if it exists: the one that made it may have died before it could.
        """
        if folder in self._made and folder.is_dir():
            return
        inside = folder != self.root and folder.is_relative_to(self.root)
        if inside or not folder.parent.is_dir():
            self._make_folder(folder.parent)
        is_new = not folder.is_dir()
        folder.mkdir(exist_ok=True)
        if is_new or inside:
            _make_durable(folder.parent)
        self._made.add(folder)

    def _move(self, folder: Path, target: Path) -> bool:
        for path in folder.rglob("*"):
            _make_durable(path)
        _make_durable(folder)
        self._make_folder(target.parent)
        try:
            os.rename(folder, target)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        _make_durable(target.parent)
        return True


@contextmanager
def _written(path: Path, data: bytes | memoryview | pa.Buffer) -> Generator[None]:
    """A file of these bytes, durable, and held until the end of the block."""
    left = memoryview(data).cast("B")
    with open(path, "xb", buffering=0) as file:
        hold(file.fileno())
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
        yield


def _link(unfinished: Path, target: Path) -> bool:
    try:
        os.link(unfinished, target)
    except FileExistsError:
        # Where NFS loses the reply to a link that was made, the client asks again and is told that the target exists.
        return unfinished.stat().st_nlink == 2
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            raise StoreNotExclusive(
                f"cannot link {target}: {error.strerror}. A run needs a filesystem with hard links, or two workers could "
                f"write one object; put run.dir on a local disk, on NFS, or on an object store"
            ) from error
        raise
    return True


def _replace(unfinished: Path, target: Path) -> bool:
    os.rename(unfinished, target)
    return True


def _make_durable(path: Path) -> None:
    """Fsync a file, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _explained(doing: str, path: Path) -> Generator[None]:
    """Turn the system's refusals into `StoreError`s that say what to do."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        what = f"cannot {doing} {path}: {error.strerror or error}"
        if error.errno in _FULL:
            raise StoreFull(f"{what}. Nothing was half-written; make room there, then resume the run") from error
        if error.errno in _READ_ONLY and doing != "read":
            raise StoreReadOnly(
                f"{what}. User {os.geteuid()} must be able to write there: mend its owner, mode or mount, or choose "
                f"another run.dir"
            ) from error
        if error.errno == errno.EXDEV:
            raise StoreError(f"{what}. A folder is renamed into place: build it in scratch()") from error
        raise StoreError(f"{what}. Check that the path, the disk and the mount are as they should be") from error
