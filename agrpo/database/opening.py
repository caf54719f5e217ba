"""Opening the file: one process at a time may write, and while it does nobody else may read, so everyone is patient."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from pathlib import Path

import duckdb

from agrpo.errors import DatabaseBusy

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.25


class Trouble(StrEnum):
    """What kept DuckDB from doing its work."""

    BUSY = "busy"
    """Another process, or another part of this one, has the file open the other way."""
    FULL = "full"
    """No space left."""
    DAMAGED = "damaged"
    """The bytes are not a database, or not a whole one."""
    OTHER = "other"


_SIGNS = (
    (Trouble.BUSY, ("Could not set lock", "different configuration than existing")),
    (Trouble.FULL, ("No space left", "File too large", "quota exceeded")),
    (Trouble.DAMAGED, ("not a valid DuckDB database", "Corrupt", "replaying WAL", "Could not read enough bytes")),
)
"""Words of DuckDB's messages, which have no error codes. The first that fits tells: a log that cannot be replayed for
want of space is not damaged."""


def trouble_of(error: duckdb.Error) -> Trouble:
    """What an error of DuckDB means to us."""
    for trouble, signs in _SIGNS:
        if any(sign in str(error) for sign in signs):
            return trouble
    breakdown = isinstance(error, duckdb.FatalException | duckdb.InternalException | duckdb.SerializationException)
    return Trouble.DAMAGED if breakdown else Trouble.OTHER


def open_patiently(path: Path, *, read_only: bool, deadline_seconds: float) -> duckdb.DuckDBPyConnection:
    """A connection to the file, once nobody is in the way.

    Raises `DatabaseBusy` naming the process that was, or DuckDB's own error for any other trouble.
    """
    began, pause = time.monotonic(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return duckdb.connect(str(path), read_only=read_only)
        except duckdb.Error as error:
            if trouble_of(error) is not Trouble.BUSY:
                raise
            waited = time.monotonic() - began
            if waited >= deadline_seconds:
                raise DatabaseBusy(_busy(path, _holder(error), waited, read_only)) from None
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)


def _busy(path: Path, holder: str, waited: float, read_only: bool) -> str:
    advice = (
        "the recorder keeps it for moments only: is another writer at work?"
        if read_only
        else "close that connection: a notebook or shell that stays connected keeps the recorder from writing"
    )
    return f"{path} is held open by {holder}; waited {waited:.1f} s to {'read' if read_only else 'write'} it; {advice}"


def _holder(error: duckdb.Error) -> str:
    found = re.search(r"held in (\S+)? ?\(PID (\d+)\)", str(error))
    return f"process {found[2]} ({found[1] or 'unknown'})" if found else "another connection of this process"
