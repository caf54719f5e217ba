"""Another process that has the database open, as a notebook or a second recorder would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "read")
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """Open the file in another process, to "read" or to "write", until the block ends or its input is closed."""
    command = [sys.executable, "-c", _PROGRAM, str(path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()
