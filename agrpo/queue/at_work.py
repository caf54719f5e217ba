"""Whether some process is training a run at this moment.

Only a courtesy: of two learners the older one is retired at its next write, whatever was seen here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time

from agrpo.queue.run_folder import RunFolder

LEARNER = "learner"
FRESH_SECONDS = 15.0
"""A learner that has not spoken for longer, on another machine, is not listened to: a clock may be wrong, and it is fenced."""
LISTEN_SECONDS = 2.5
"""Beats come every second while a learner waits, and after every step."""
LEAVE_SECONDS = 10.0
"""A learner whose supervisor was killed takes a moment to end."""
LOOK_SECONDS = 0.1


def learner_at_work(folder: RunFolder) -> str | None:
    """Where the run's learner is at work, in words; None: nowhere that can be seen.

    One on this machine is given `LEAVE_SECONDS` to end, since the run may just have been killed.
    """
    newest = max(folder.attempts(), default=None)
    if newest is None:
        return None
    attempt = folder.attempt(newest)
    assert attempt is not None, f"attempt {newest} was listed and is gone"
    if attempt.host == socket.gethostname():
        leaves = _leaves(attempt.pid, folder.url)
        return None if leaves else f"process {attempt.pid} on this machine ({attempt.host}), attempt {newest}"
    return f"a process on {attempt.host}, attempt {newest}, whose beats move" if _speaks(folder) else None


def _leaves(pid: int, run_url: str) -> bool:
    """Whether it is gone, or soon is."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while _lives(pid, run_url):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _lives(pid: int, run_url: str) -> bool:
    """Whether the process is a stage of this run: numbers of processes are given again."""
    command = _command(pid)
    return "agrpo.stages" in command and run_url in command


def _command(pid: int) -> list[str]:
    """The words a process was started with; none where it is gone."""
    if os.path.isdir("/proc/self"):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return file.read().decode(errors="replace").split("\0")
        except OSError:
            return []
    told = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
    return told.stdout.split()


def _speaks(folder: RunFolder) -> bool:
    """Whether new beats of the learner come."""
    first = _spoke_at(folder)
    if first is None or abs(time.time() - first) > FRESH_SECONDS:
        return False
    deadline = time.monotonic() + LISTEN_SECONDS
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        if _spoke_at(folder) != first:
            return True
    return False


def _spoke_at(folder: RunFolder) -> float | None:
    return next((float(beat["at"]) for beat in folder.beats() if beat["stage"] == LEARNER), None)
