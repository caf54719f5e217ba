"""A store that ends its writer at a chosen write, or holds it there: what SIGKILL and SIGSTOP do, at an exact place.

Hints and beats are not counted: they are overwritten, may be lost at any time, and their number depends on the clock.
"""

from __future__ import annotations

import builtins
import re
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pytest

from agrpo.queue import run_folder
from agrpo.queue.filesystems import Filesystem

DEADLINE_SECONDS = 60.0
UNCOUNTED = ("hint", "beat")


class Killed(BaseException):
    """The process ends here. Nothing that it does afterwards reaches the store."""


class Side(StrEnum):
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Place:
    """One side of one write. `key`: a pattern of the whole key; the first write that it fits counts."""

    kind: str
    """`put`, `put_folder` or `delete`."""
    key: str
    side: Side

    def __str__(self) -> str:
        return f"{self.side} {self.kind} {self.key}"

    def is_at(self, kind: str, key: str, side: Side) -> bool:
        return (kind, side) == (self.kind, self.side) and re.fullmatch(self.key, key) is not None


@dataclass
class Writer:
    """One process, as its store sees it."""

    killed_at: Place | None = None
    held_at: Place | None = None
    writes: list[tuple[str, str]] = field(default_factory=list)
    """Kind and key of every write that was begun."""
    dead: bool = False
    held: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def live(self) -> None:
        if self.dead:
            raise Killed("a dead process does nothing")

    def reach(self, kind: str, key: str, side: Side) -> None:
        """Die or stand still where that was asked for."""
        if self.killed_at is not None and self.killed_at.is_at(kind, key, side):
            self.dead = True
            raise Killed(f"killed {self.killed_at}")
        if self.held_at is not None and not self.held.is_set() and self.held_at.is_at(kind, key, side):
            self.held.set()
            assert self.let_go.wait(DEADLINE_SECONDS), f"nobody let go who was held {self.held_at}"


class StoppingStore:
    """The store as one writer has it."""

    def __init__(self, inner: Filesystem, writer: Writer) -> None:
        self.inner = inner
        self.writer = writer
        self.url = inner.url

    def put(self, key: str, data: bytes | memoryview | pa.Buffer, *, exclusive: bool = True) -> bool:
        with self._write("put", key):
            return self.inner.put(key, data, exclusive=exclusive)

    def put_folder(self, key: str, folder: Path) -> bool:
        with self._write("put_folder", key, unfinished=folder):
            return self.inner.put_folder(key, folder)

    def delete(self, key: str) -> None:
        with self._write("delete", key):
            self.inner.delete(key)

    def get(self, key: str) -> pa.Buffer | None:
        self.writer.live()
        return self.inner.get(key)

    def list(self, prefix: str) -> builtins.list[str]:
        self.writer.live()
        return self.inner.list(prefix)

    def local_folder(self, key: str) -> Path | None:
        self.writer.live()
        return self.inner.local_folder(key)

    def forget(self, key: str) -> None:
        self.writer.live()
        self.inner.forget(key)

    def scratch(self) -> Path:
        self.writer.live()
        return self.inner.scratch()

    @contextmanager
    def _write(self, kind: str, key: str, unfinished: Path | None = None) -> Generator[None]:
        writer = self.writer
        writer.live()
        if key.partition("/")[0] in UNCOUNTED:
            yield
            return
        writer.writes.append((kind, key))
        try:
            writer.reach(kind, key, Side.BEFORE)
        except Killed:
            if unfinished is not None:  # who is killed tidies nothing up
                left = self.inner.scratch()
                left.rmdir()  # and with it the lock, which ends with a process
                shutil.copytree(unfinished, left)
            raise
        yield
        writer.reach(kind, key, Side.AFTER)


class Stores:
    """Puts writers between stages and their stores, thread by thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._writers = threading.local()
        self._open = run_folder.open_filesystem
        monkeypatch.setattr(run_folder, "open_filesystem", self._opened)

    @contextmanager
    def writing_as(self, writer: Writer) -> Generator[None]:
        """What this thread opens meanwhile belongs to the writer."""
        self._writers.one = writer
        try:
            yield
        finally:
            self._writers.one = None

    def _opened(self, url: str) -> Filesystem:
        writer: Writer | None = getattr(self._writers, "one", None)
        return self._open(url) if writer is None else StoppingStore(self._open(url), writer)
