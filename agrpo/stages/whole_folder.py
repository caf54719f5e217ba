"""Folders that are written whole or not at all: built aside, and published under their name in one step."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from agrpo.errors import StoreError, StoreFull
from agrpo.queue.filesystems import Filesystem


@contextmanager
def written_whole(filesystem: Filesystem, key: str) -> Generator[Path]:
    """A folder to fill, published under `key` at the end of the block. After an error nothing of it is left.

    Raises `StoreFull` where its disk is.
    """
    scratch = filesystem.scratch()
    try:
        yield scratch
        filesystem.put_folder(key, scratch)
    except (OSError, SafetensorError) as error:
        # safetensors has the system's words, and no number.
        if isinstance(error, StoreError) or os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise StoreFull(
            f"cannot write {filesystem.url}/{key}: no space left on its disk. What was written before is whole: make room "
            "there, then `agrpo resume` this run"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
