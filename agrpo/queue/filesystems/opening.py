"""From a URL to a filesystem, and the question whether it keeps the one promise everything rests on."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from agrpo.errors import ConfigError, StoreNotExclusive
from agrpo.queue.filesystems import Filesystem


def open_filesystem(url: str) -> Filesystem:
    """The filesystem at a path, `file://…`, `memory://name`, or a URL that fsspec knows (`s3://bucket/folder`).

    Nothing is created until something is written. Raises `ConfigError` or `MissingPackage`.
    """
    protocol, separator, rest = url.partition("://")
    if not url or (separator and not rest.strip("/")):
        raise ConfigError(f'"{url}" names no folder; write a path, s3://bucket/folder or memory://name')
    if not separator or protocol == "file":
        from agrpo.queue.filesystems.local import LocalFilesystem

        return LocalFilesystem(Path(rest or url))
    if protocol == "memory":
        from agrpo.queue.filesystems.memory import MemoryFilesystem

        return MemoryFilesystem(rest)
    from agrpo.queue.filesystems.object_store import ObjectStore

    return ObjectStore(url)


def probe(filesystem: Filesystem) -> None:
    """Make sure that the store can be written and creates an object exactly once; leaves nothing behind.

    Raises `StoreReadOnly`, `StoreFull`, or `StoreNotExclusive`.
    """
    key = f"probe-{uuid4().hex}"
    filesystem.put(key, b"first")
    try:
        overwritten = filesystem.put(key, b"second")
        found = filesystem.get(key)
    finally:
        filesystem.delete(key)
    if overwritten or found is None or found.to_pybytes() != b"first":
        raise StoreNotExclusive(
            f"{filesystem.url} let a second writer create {key}: found {found and found.to_pybytes()!r} where b'first' "
            f"was expected. A run needs a store whose PUT honours If-None-Match, or a local disk; choose another run.dir"
        )
