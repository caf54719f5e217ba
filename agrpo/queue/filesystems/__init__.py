"""Filesystems: one primitive, *publish whole, once*, over a local folder, an object store or memory.

Keys are relative paths with `/`, whose names are not empty and do not begin with a dot. An object is never changed in
place; hints alone are overwritten. A key names one content for ever, so nothing is published again after its removal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "MANIFEST.json"
"""The file of a published folder that is written last where folders cannot be renamed."""
ABANDONED_SECONDS = 3600.0
"""Age of the last change after which unfinished files are taken to be those of a writer that died, where no lock tells."""


class Filesystem(Protocol):
    """Where a run's durable objects are kept. Thread-safe. Raises `StoreError`s."""

    url: str
    """What `open_filesystem` opens again: an absolute path where it is local."""

    def put(self, key: str, data: bytes | memoryview | pa.Buffer, *, exclusive: bool = True) -> bool:
        """Publish the object whole. Durable on return; what is overwritten may be an older one after a loss of power.

        False: it exists already and `exclusive` was asked for. Of any number of writers exactly one gets True, and the
        object is the winner's. Raises `StoreFull` or `StoreReadOnly` with nothing written.
        """
        ...

    def get(self, key: str) -> pa.Buffer | None:
        """The object's bytes, or None where there is none. Mapped, not read, where it is local."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Names directly under the folder `prefix` ("" for the root), sorted; folders and objects alike.

        Empty where there is none. Names that begin with a dot are left out. On object stores a folder is listed as
        soon as one of its files is there, whole or not.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object or a folder with all it holds. Nothing happens where there is none.

        A reader sees a folder whole or not at all.
        """
        ...

    def put_folder(self, key: str, folder: Path) -> bool:
        """Publish a local folder's files under `key`, all or nothing, and take the local folder away in either case.

        False: something exists already. On object stores, which know no rename, `MANIFEST.json` is uploaded last (one
        that lists the files is made where the folder has none): a folder without one does not exist. Two writers of
        one key could mix their files there, so a key names its only writer (an attempt) or its content (a digest).
        After an error the local folder is still there.
        """
        ...

    def local_folder(self, key: str) -> Path | None:
        """A local folder with the files published under `key`, downloaded where they are remote, or None.

        The caller must not change it. A download is kept until the key is deleted or published anew, or the process ends.
        """
        ...

    def forget(self, key: str) -> None:
        """Drop the download of a folder that turned out to be damaged: it is downloaded again. Nothing else changes."""
        ...

    def scratch(self) -> Path:
        """A new local folder to build what `put_folder` publishes, on the store's own mount where that is local.

        Its owner removes it or publishes it. What a dead owner left is swept by the next one to open the store, or after an
        hour where it was on another machine.
        """
        ...


def names_of(key: str) -> list[str]:
    """The names a key is made of; none for the root, ""."""
    names = key.split("/") if key else []
    for name in names:
        assert name and not name.startswith("."), f"{key!r} is no key: a name in it is empty or begins with a dot"
    return names
