"""A run in this process's memory, for tests and notebooks: `memory://name`, one tree per name, gone with the process."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from agrpo.errors import StoreError
from agrpo.queue.filesystems import names_of
from agrpo.queue.filesystems.copies import LocalCopies, new_folder

if TYPE_CHECKING:
    import builtins

    import pyarrow as pa

_Tree: TypeAlias = "dict[str, _Tree | bytes]"


class MemoryFilesystem:
    """All that open one name share one tree, whatever the thread."""

    def __init__(self, name: str) -> None:
        self.url = f"memory://{name}"
        self._volume = _volumes.setdefault(name, _Volume())

    def put(self, key: str, data: bytes | memoryview | pa.Buffer, *, exclusive: bool = True) -> bool:
        return self._set(key, bytes(memoryview(data)), exclusive=exclusive)

    def get(self, key: str) -> pa.Buffer | None:
        import pyarrow as pa

        found = self._find(key)
        return pa.py_buffer(found) if isinstance(found, bytes) else None

    def delete(self, key: str) -> None:
        *above, name = names_of(key)
        with self._volume.lock:
            folder = self._find("/".join(above))
            if isinstance(folder, dict):
                folder.pop(name, None)
            self._volume.copies.drop(key)

    def put_folder(self, key: str, folder: Path) -> bool:
        published = self._set(key, _read(folder), exclusive=True)
        shutil.rmtree(folder)
        return published

    def local_folder(self, key: str) -> Path | None:
        with self._volume.lock:
            found = self._find(key)
            if not isinstance(found, dict):
                return None
            return self._volume.copies.get(key, lambda folder: _write(found, folder))

    def forget(self, key: str) -> None:
        with self._volume.lock:
            self._volume.copies.drop(key)

    def scratch(self) -> Path:
        return new_folder()

    def list(self, prefix: str) -> builtins.list[str]:
        with self._volume.lock:
            found = self._find(prefix)
            return sorted(name for name in found if name[0] != ".") if isinstance(found, dict) else []

    def _find(self, key: str) -> _Tree | bytes | None:
        with self._volume.lock:
            found: _Tree | bytes | None = self._volume.tree
            for name in names_of(key):
                found = found.get(name) if isinstance(found, dict) else None
            return found

    def _set(self, key: str, value: _Tree | bytes, *, exclusive: bool) -> bool:
        *above, name = names_of(key)
        with self._volume.lock:
            folder = self._volume.tree
            for step in above:
                below = folder.setdefault(step, {})
                if isinstance(below, bytes):
                    raise StoreError(f"cannot write {self.url}/{key}: {step} is an object, not a folder")
                folder = below
            if exclusive and name in folder:
                return False
            folder[name] = value
            return True


@dataclass(frozen=True, slots=True)
class _Volume:
    tree: _Tree = field(default_factory=dict)
    copies: LocalCopies = field(default_factory=LocalCopies)
    lock: threading.RLock = field(default_factory=threading.RLock)


_volumes: dict[str, _Volume] = {}


def _read(folder: Path) -> _Tree:
    return {path.name: _read(path) if path.is_dir() else path.read_bytes() for path in folder.iterdir()}


def _write(tree: _Tree, folder: Path) -> None:
    for name, value in tree.items():
        if isinstance(value, bytes):
            (folder / name).write_bytes(value)
        else:
            (folder / name).mkdir()
            _write(value, folder / name)
