"""What memory there is: of a machine, within what its control group allows, and of its GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 2**60
"""A control group without a limit names a number as large as this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of the machine or of one GPU, in bytes."""

    total: int
    """The control group's limit, where it is less than the machine has."""
    free: int
    """Not taken by others now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a run begins."""

    memory: Memory
    gpus: tuple[Memory, ...] = ()
    """Those that the learner's process will see, in order."""
    gpus_doubt: str | None = None
    """Why it may see others; None: it is sure."""


def read_memory(proc: Path, groups: Path) -> Memory:
    """Of the machine, within the control group of this process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    known = _sizes(proc / "meminfo")
    total, free = known.get("MemTotal", total), known.get("MemAvailable", total)
    for limit, used in _limits(proc / "self" / "cgroup", groups):
        total, free = min(total, limit), min(free, max(0, limit - used))
    return Memory(total=total, free=free)


def _sizes(meminfo: Path) -> dict[str, int]:
    """Bytes by name, from a table in kB. Empty where there is none (macOS)."""
    if not meminfo.is_file():
        return {}
    lines = (line.split() for line in meminfo.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _limits(own: Path, groups: Path) -> list[tuple[int, int]]:
    """Limit and use of every control group that this process is in: what lies in the page cache can be taken back."""
    if not own.is_file():
        return []
    found: list[tuple[int, int]] = []
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = groups / "memory" if controllers else groups
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        place = root / path.lstrip("/")
        # Inside a container its own group is the root of what can be seen.
        for folder in dict.fromkeys([place, *place.parents, root]):
            if folder.is_relative_to(root) and (limit := _number(folder / names[0])) is not None and limit < UNLIMITED:
                found.append((limit, (_number(folder / names[1]) or 0) - _reclaimable(folder / "memory.stat")))
    return found


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _reclaimable(stat: Path) -> int:
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
    except OSError:
        return 0
    counts = {name: int(value) for name, value in lines}
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))
