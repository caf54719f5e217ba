"""What one call of a reward may take, and how the operating system holds it to that."""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agrpo.config import RewardSection

CLOCK_SLACK = 10
"""Times `timeout_seconds` that a call may take by the clock where only processor time decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one call."""

    wall_seconds: float
    cpu_seconds: int
    """Whole seconds, for the system counts no finer. Of all threads of a process together."""
    memory_bytes: int
    """Of address space, beyond what the template holds."""
    clock_decides: bool
    """Whether a call over `wall_seconds` has failed. Otherwise such a call is an error of the run."""

    @classmethod
    def of(cls, section: RewardSection, *, reproducible: bool) -> Limits:
        """The limits a run's setting asks for.

        `reproducible`: the clock must not decide a value, since it never goes the same way twice; processor time does.
        """
        return cls(
            wall_seconds=section.timeout_seconds * (CLOCK_SLACK if reproducible else 1),
            cpu_seconds=math.ceil(section.timeout_seconds),
            memory_bytes=section.memory_bytes,
            clock_decides=not reproducible,
        )

    def impose(self) -> None:
        """Bind this process and those it starts. The clock is the parent's to watch."""
        # The soft limit ends a process that lets it, the hard one any other.
        _lower(resource.RLIMIT_CPU, self.cpu_seconds, self.cpu_seconds + 1)
        self.bound_memory()

    def bound_memory(self) -> None:
        """Bind what this process takes beyond what it holds now, and have it leave no dump of a crash."""
        _lower(resource.RLIMIT_CORE, 0, 0)
        held = _address_space_bytes()
        if held is not None:
            _lower(resource.RLIMIT_AS, held + self.memory_bytes, held + self.memory_bytes)


def _lower(which: int, soft: int, hard: int) -> None:
    _, ceiling = resource.getrlimit(which)
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(which, (soft, hard))


def _address_space_bytes() -> int | None:
    """None where the system does not say (macOS, which does not enforce the limit either)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except FileNotFoundError:
        return None
    return pages * resource.getpagesize()
