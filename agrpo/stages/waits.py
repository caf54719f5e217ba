"""Waits: for how long each limit has kept the next group from being started."""

from __future__ import annotations

import time
from collections.abc import Callable

from agrpo.records.pace import Limit


class Waits:
    """The clock of one generator's limits. A limit that was seen to hold the next group has an entry, be it of 0 s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[Limit, float] = {}
        self._since = 0.0
        self._held_at = 0.0
        self.held_by: Limit | None = None
        """The limit that holds the next group now. None: none does."""

    @property
    def held_seconds(self) -> float:
        """For how long that limit has held it; 0 where none does."""
        return 0.0 if self.held_by is None else self._clock() - self._held_at

    def note(self, limit: Limit | None) -> None:
        """What holds the next group from now on. The time since the last word is that of the limit which held it till now."""
        now = self._clock()
        if self.held_by is not None:
            self._seconds[self.held_by] += now - self._since
        if limit is not None:
            self._seconds.setdefault(limit, 0.0)
        if limit is not self.held_by:
            self._held_at = now
        self.held_by, self._since = limit, now

    def take(self) -> dict[Limit, float]:
        """The waits of the group that begins now, and begin anew for the next one."""
        self.note(None)
        taken, self._seconds = self._seconds, {}
        return taken
