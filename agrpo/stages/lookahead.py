"""Lookahead: in lockstep, how many tickets before one will not fill a step, by what is written of them alone."""

from __future__ import annotations

import bisect

from agrpo.config import RunConfig
from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.score import fills_step


class Lookahead:
    """Reads each scored group once."""

    def __init__(self, folder: RunFolder, config: RunConfig, *, floor: int = 0, replaced: int = 0) -> None:
        """Below `floor` every ticket is consumed, and `replaced` of them took no place."""
        self._floor = floor
        self._replaced_below_floor = replaced
        self._folder = folder
        self._zero_variance = config.zero_variance
        self._seen: set[int] = set()
        self._replaced: list[int] = []
        """Tickets that take no place, ascending."""
        self._next = floor

    def dropped_before(self, ticket: int, rewinds: Rewinds) -> int:
        """Tickets below this one that take no place in any step: by their scores, or because they are void."""
        void = {number for number in rewinds.void_below(ticket) if number >= self._floor}
        for number in self._folder.scored.numbers(self._next):
            if number not in self._seen:
                data, key = self._folder.scored.demand(number), self._folder.scored.key(number)
                self._seen.add(number)
                if not fills_step(scored_from_arrow(data, key).marks, self._zero_variance):
                    bisect.insort(self._replaced, number)
        while self._next in self._seen or self._next in void:
            self._seen.discard(self._next)
            self._next += 1
        below = self._replaced[: bisect.bisect_left(self._replaced, ticket)]
        return self._replaced_below_floor + len(void.union(below))
