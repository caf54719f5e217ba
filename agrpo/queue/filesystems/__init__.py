"""Filesystems: one primitive, *publish whole, once*, over a local folder, an object store or memory.

Keys are relative paths with `/`. An object is never changed in place; hints alone are overwritten.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = "bytes | bytearray | memoryview | pa.Buffer"


class Filesystem(Protocol):
    """Where a run's durable objects are kept. Thread-safe. Raises `StoreError`s."""

    url: str

    def put(self, key: str, data: bytes | memoryview | pa.Buffer, *, exclusive: bool = True) -> bool:
        """Publish the object whole. False: it exists already and `exclusive` was asked for. Durable on return."""
        ...

    def get(self, key: str) -> pa.Buffer | None:
        """The object's bytes, or None where there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Names directly under the folder `prefix`, sorted; folders and objects alike. Empty where there is none."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object or a folder with all it holds. Nothing happens where there is none."""
        ...

    def put_folder(self, key: str, folder: Path) -> bool:
        """Publish a local folder's files under `key`, all or nothing, and take the folder away. False: exists already.

        On object stores, which know no rename, `MANIFEST.json` is uploaded last: a folder without one does not exist.
        """
        ...

    def local_folder(self, key: str) -> Path | None:
        """A local folder holding the files published under `key` (downloaded where they are remote), or None."""
        ...

    def scratch(self) -> Path:
        """A new local folder on the same mount as the store where it is local, to build what `put_folder` publishes."""
        ...
