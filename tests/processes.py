"""Finding every process that a test started, whoever its parent has become, through a variable they all inherit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def marked(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """The mark of all processes started from here on; what is left of them at the end is killed. For a fixture."""
    monkeypatch.setenv("AGRPO_TEST_MARK", str(place))
    mark = f"AGRPO_TEST_MARK={place}".encode()
    yield mark
    for pid in alive(mark):
        os.kill(pid, signal.SIGKILL)


def alive(mark: bytes) -> list[int]:
    """Processes with the mark. One that is dead and not yet reaped has no environment left."""
    found: list[int] = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


def until(fact: Callable[[], object], seconds: float) -> None:
    """Wait for a fact; fail where it does not come about."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
