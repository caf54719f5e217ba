"""The learner's clock: where the wall time of a step goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager

from agrpo.records.timings import StepTimings

_OF_SYNC = ("sync_transfer", "sync_pause", "sync_barrier")
"""Parts of publishing that are told apart, and are in its time as well."""


class StepClock:
    """Charges every moment to one part: the innermost that is open, or `other`."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open = ["other"]
        self._num_syncs = 0
        self._charged_until = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """Charge the block to a part of `StepTimings`, less the parts opened inside it."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def move(self, name: str, seconds: float) -> None:
        """Charge seconds of the open part, measured elsewhere, to another one."""
        self._seconds[self._open[-1]] -= seconds
        self._seconds[name] += seconds

    def count_sync(self) -> None:
        self._num_syncs += 1

    def lap(self) -> StepTimings:
        """The parts since the lap before; the clock begins anew."""
        self._charge()
        seconds, num_syncs = dict(self._seconds), self._num_syncs
        self._seconds.clear()
        self._num_syncs = 0
        inner = {name: seconds.pop(name, 0.0) for name in _OF_SYNC}
        seconds["sync"] = seconds.get("sync", 0.0) + sum(inner.values())
        parts = {f"{name}_seconds": spent for name, spent in (seconds | inner).items()}
        return StepTimings(step_seconds=sum(seconds.values()), num_syncs=num_syncs, **parts)

    def _charge(self) -> None:
        now = time.perf_counter()
        self._seconds[self._open[-1]] += now - self._charged_until
        self._charged_until = now
