"""Tools that no run should have."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path


def fork_and_hang(note: str) -> str:
    """Start a process in a session of its own, write its number down, and never return.

    Args:
        note: The file to write it to.
    """
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(note).write_text(f"{child.pid}\n")
    time.sleep(600)
    return "never"


def hold_the_interpreter() -> int:
    """Compute in one call that lets no other thread run."""
    seven = int("7")
    return seven ** (seven**9)


async def block_the_loop(seconds: float) -> str:
    """Wait without awaiting.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "waited"
