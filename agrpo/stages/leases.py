"""Leases: what a generator has claimed is anybody's once it has been silent for long, and nobody starts it again.

It may be alive all the same. Then a group is generated twice, and the slot takes the first.
"""

from __future__ import annotations

import time

from agrpo.queue.run_folder import RunFolder
from agrpo.stages.context import name_of
from agrpo.stages.silence import Silence

LOOKS_PER_LEASE = 10


class Leases:
    """The claims of all other generators, as `stage` sees them."""

    def __init__(self, folder: RunFolder, stage: str, lease_seconds: float) -> None:
        self._folder = folder
        self._stage = stage
        self._seconds = lease_seconds
        self._silence = Silence(folder, "generator")
        self._looked_at = time.monotonic()

    def lapsed(self, floor: int) -> dict[int, int]:
        """Tickets from `floor` on that a silent generator holds and has no group of, each with the try that takes it over.

        Looks ten times a lease; in between there are none.
        """
        now = time.monotonic()
        if now - self._looked_at < self._seconds / LOOKS_PER_LEASE:
            return {}
        self._looked_at = now
        self._silence.look()
        found: dict[int, int] = {}
        written = set(self._folder.groups.numbers(floor))
        for ticket in self._folder.claims.tickets(floor):
            claim = None if ticket in written else self._folder.claims.holder(ticket)
            if claim is not None and self._has_lapsed(name_of(claim.owner)):
                found[ticket] = claim.number_try + 1
        return found

    def _has_lapsed(self, name: str) -> bool:
        return name != self._stage and self._silence.seconds(name) > self._seconds
