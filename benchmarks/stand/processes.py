"""What the kernel says of a process and its descendants: memory and CPU seconds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One process at one moment."""

    resident_mb: float
    """All pages in memory, of mapped files too."""
    private_mb: float
    """Pages of its own: heap and stacks."""
    cpu_seconds: float
    """Of the process, and of its children that have ended."""


def read(pid: int) -> Reading | None:
    """None: the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    kilobytes = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in status.splitlines())
        if name in ("VmRSS", "RssAnon")
    }
    if not kilobytes:  # a zombie
        return None
    return Reading(
        resident_mb=kilobytes["VmRSS"] / 1024,
        private_mb=kilobytes["RssAnon"] / 1024,
        cpu_seconds=sum(map(int, times[11:15])) / _TICKS,
    )


def children(pid: int) -> list[int]:
    """All descendants, by the kernel's lists."""
    found: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        direct = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    for child in direct:
        found += [child, *children(child)]
    return found
