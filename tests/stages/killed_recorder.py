"""Recorders that are killed: run in a child process, by name."""

from __future__ import annotations

import linecache
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from agrpo.database import batch, writer
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.recorder import record_once


def die_before(url: str, path: Path, line: str, time: int) -> None:
    """Record, and be killed before a line of the database's writer runs for the `time`-th time."""
    left = time

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal left
        if frame.f_code.co_filename != writer.__file__:
            return None
        if event == "line" and line in linecache.getline(writer.__file__, frame.f_lineno):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    folder, database = RunFolder.open(url), Database(path)
    sys.settrace(trace)
    record_once(folder, database)


def record_for_ever(url: str, path: Path, told: Connection) -> None:
    """Record in transactions of a few records, again and again, until somebody kills this process."""
    batch.MOST_ROWS = 4
    folder, database = RunFolder.open(url), Database(path)
    told.send("begun")
    while True:
        record_once(folder, database)
