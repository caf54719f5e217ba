"""The scoring queue: one generator's groups that wait for scores, of which there may be so many (A-090, A-318)."""

from __future__ import annotations

from agrpo.queue.run_folder import RunFolder


class ScoringQueue:
    """Groups published by one incarnation, until it has seen that they are scored. It looks where it is told to."""

    def __init__(self, folder: RunFolder, size: int) -> None:
        self._folder = folder
        self._tickets: set[int] = set()
        self.size = size

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def is_full(self) -> bool:
        """Whether so many wait that no group is to be begun, as of the last look."""
        return len(self._tickets) >= self.size

    def add(self, ticket: int) -> None:
        """A group was published."""
        self._tickets.add(ticket)

    def look(self, floor: int) -> bool:
        """Look who is still waiting; whether there are fewer now.

        Below `floor` every ticket is consumed: one that is void may be so without scores, and never gets any.
        """
        before = len(self._tickets)
        self._tickets = {ticket for ticket in self._tickets if ticket >= floor}
        if self._tickets:
            self._tickets -= set(self._folder.scored.numbers(min(self._tickets)))
        return len(self._tickets) < before
