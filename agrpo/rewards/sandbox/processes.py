"""Killing all of a process's descendants, and no one else's. Linux keeps every promise here; macOS those of groups."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

_SET_DEATH_SIGNAL, _ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


def die_with(parent: int) -> None:
    """Be killed when the process `parent`, or the thread of it that started this one, ends."""
    _control(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with`."""
    _control(_SET_DEATH_SIGNAL, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that `children` lists it."""
    _control(_ADOPT_ORPHANS, 1)


def _control(option: int, value: int) -> None:
    if _libc is not None and _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def children() -> set[int]:
    """Processes whose parent is this one, ended ones included. Empty where the system does not list them."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        found.update(int(pid) for pid in task.read_text().split())
    return found


def kill_group(leader: int) -> None:
    """Kill a child and its process group. The child must not have been waited for, or its number may be another's."""
    for kill in (os.killpg, os.kill):
        try:
            kill(leader, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # none left; macOS says so of a group that has ended
            continue


def kill_session(leader: int) -> None:
    """Kill whatever still runs in the session that the ended process `leader` led."""
    for pid in [pid for pid, session in _sessions() if session == leader]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _sessions() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(entry.parent.name), int(fields[3])
