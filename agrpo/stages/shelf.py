"""The shelf: the scored groups that wait for the learner, each read once."""

from __future__ import annotations

from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.score import ScoredGroup


class ConsumedTickets:
    """The tickets that plans hold: everything below `floor`, and `above` it."""

    def __init__(self, floor: int = 0, above: set[int] | None = None) -> None:
        self.floor = floor
        self.above = set(above or ())

    def __contains__(self, ticket: int) -> bool:
        return ticket < self.floor or ticket in self.above

    def __len__(self) -> int:
        return self.floor + len(self.above)

    def add(self, ticket: int) -> None:
        assert ticket not in self, f"ticket {ticket} is consumed twice"
        self.above.add(ticket)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1


class Shelf:
    """Scored groups that no plan holds yet, without their tokens."""

    def __init__(self, folder: RunFolder, consumed: ConsumedTickets) -> None:
        self.consumed = consumed
        self.num_seen = 0
        """Groups ever put on the shelf."""
        self.tokens_seen = 0
        """Their tokens, before packing."""
        self._folder = folder
        self._waiting: dict[int, ScoredGroup] = {}

    @property
    def waiting(self) -> dict[int, ScoredGroup]:
        """As of the last look."""
        return self._waiting

    def look(self) -> dict[int, ScoredGroup]:
        """The waiting groups by ticket, ascending, with what was scored since the last look."""
        gone = [ticket for ticket in self._waiting if ticket in self.consumed]
        for ticket in gone:
            del self._waiting[ticket]
        fresh = [ticket for ticket in self._folder.scored.numbers(self.consumed.floor) if ticket not in self._waiting]
        added = [self._read(ticket) for ticket in fresh if ticket not in self.consumed]
        if added:
            self._waiting = dict(sorted({**self._waiting, **{group.ticket: group for group in added}}.items()))
        return self._waiting

    def num_samples(self) -> int:
        """Training sequences on the shelf."""
        return sum(sum(group.num_sequences) for group in self._waiting.values())

    def _read(self, ticket: int) -> ScoredGroup:
        data = self._folder.scored.read(ticket)
        assert data is not None, f"scored slot {ticket} was listed and is gone"
        group = scored_from_arrow(data)
        self.num_seen += 1
        self.tokens_seen += sum(group.num_forwarded_tokens)
        return group
