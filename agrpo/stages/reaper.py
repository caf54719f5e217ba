"""Kill the process groups of a supervisor that died, however it died.

A process of its own (`python -I -S reaper.py`: this page runs on the standard library alone), in a session of its own,
deaf to the signals that end its supervisor. It reads `+GROUP` and `-GROUP` from standard input; when that ends, or its
parent is another, it kills every group still on its list, stopped ones included, and exits. A descendant in a group of
its own is given a moment to end by itself, since it should watch its parent, and is then killed too: it may be stopped.
Such descendants are found through Linux' /proc; elsewhere whoever starts one must see to it that it dies with its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
KILL_SECONDS = 5.0
LEAVE_SECONDS = 1.0
"""How long a descendant in a group of its own may take to end by itself."""


class Reaper:
    """The process of this page, seen from its supervisor, and the pipe whose end it waits for. Thread-safe."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._lock = threading.Lock()
        self._start()

    def remember(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            self._tell(f"-{group}\n")

    def close(self) -> None:
        """Ends at once where no group is left, else as soon as those are killed."""
        with self._lock:
            self._pipe.close()
            self._process.wait(KILL_SECONDS + 1)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def _tell(self, line: str) -> None:
        if self._pipe.closed:
            return
        try:
            self._pipe.write(line.encode())
        except BrokenPipeError:
            logger.warning("the reaper (process %d) was killed; starting another", self._process.pid)
            self._pipe.close()
            self._process.wait()
            self._start()
            for group in self._groups:
                self._tell(f"+{group}\n")


def main() -> None:
    """The reaper's own life."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups, relatives = left_behind()
    kill(groups)
    end_relatives(relatives)


def left_behind() -> tuple[set[int], dict[int, str]]:
    """Follow the supervisor's list until the supervisor is gone: the groups on it, and their descendants.

    Descendants are looked for all along: a stage that sees its supervisor die ends at once, and its children are then
    nobody's.
    """
    supervisor, groups, rest = os.getppid(), set[int](), b""
    relatives: dict[int, str] = {}
    # A fork of the supervisor may hold the pipe open beyond its death: its successor as parent tells then.
    while os.getppid() == supervisor:
        if not select.select([0], [], [], LOOK_SECONDS)[0]:
            relatives = descendants(groups)
            continue
        chunk = os.read(0, 4096)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            group = int(line[1:])
            groups = groups | {group} if line.startswith(b"+") else groups - {group}
    return groups, relatives | descendants(groups)


def kill(groups: set[int]) -> None:
    """Kill them again and again until they are gone: a process may have been forking meanwhile."""
    deadline = time.monotonic() + KILL_SECONDS
    while groups and time.monotonic() < deadline:
        groups = {group for group in groups if _still_there(group)}
        time.sleep(0.05)


def descendants(ancestors: set[int]) -> dict[int, str]:
    """Every living descendant of these processes, by number, with its start time, which tells it from a later one."""
    parents = {pid: told for pid in _processes() if (told := _parent_and_start(pid)) is not None}
    found: dict[int, str] = {}
    near = set(ancestors)
    while near:
        near = {pid for pid, (parent, _) in parents.items() if parent in near and pid not in found}
        found |= {pid: parents[pid][1] for pid in near}
    return found


def end_relatives(relatives: dict[int, str]) -> None:
    """Wait a moment for processes that should end by themselves, then kill those that have not."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while relatives:
        told = {pid: _parent_and_start(pid) for pid in relatives}
        relatives = {pid: start for pid, start in relatives.items() if (now := told[pid]) and now[1] == start}
        if time.monotonic() >= deadline:
            for pid in relatives:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc/self") else []


def _parent_and_start(pid: int) -> tuple[int, str] | None:
    """None for a process that is gone, or dead and not yet reaped."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def _still_there(group: int) -> bool:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS refuses a group of the dead
        return False
    return True


if __name__ == "__main__":
    main()
