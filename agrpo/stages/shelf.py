"""The shelf: the scored groups that wait for the learner, each read once."""

from __future__ import annotations

import math
import time

from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.progress import DropReason
from agrpo.records.score import ScoredGroup

CLAIMS_SECONDS = 0.2
"""Between two looks for void tickets, in a run that went back."""


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

    def __init__(self, folder: RunFolder, consumed: ConsumedTickets, rewinds: Rewinds | None = None) -> None:
        """`rewinds`: what makes tickets void; None: the run has no history that could."""
        self.consumed = consumed
        self.num_seen = 0
        """Groups ever put on the shelf."""
        self.tokens_seen = 0
        """Their tokens, before packing."""
        self._folder = folder
        self._waiting: dict[int, ScoredGroup] = {}
        self._rewinds = rewinds
        self._void: dict[int, DropReason] = {}
        self._claims_looked_at = -math.inf
        self._valid: set[int] = set()
        """Claimed tickets that count."""

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
        added = [self._read(ticket) for ticket in fresh if ticket not in self.consumed and not self._is_void(ticket)]
        if added:
            self._waiting = dict(sorted({**self._waiting, **{group.ticket: group for group in added}}.items()))
        return self._waiting

    def void(self) -> dict[int, DropReason]:
        """Claimed tickets that are void and that no plan holds, as far as is known for a fifth of a second."""
        if self._rewinds and time.monotonic() - self._claims_looked_at > CLAIMS_SECONDS:
            self._claims_looked_at = time.monotonic()
            claimed = [ticket for ticket in self._folder.claims.tickets(self.consumed.floor) if self._is_new(ticket)]
            self._void.update(self._rewinds.void_tickets(claimed))
            self._valid.update(ticket for ticket in claimed if ticket not in self._void)
            self._valid = {ticket for ticket in self._valid if ticket >= self.consumed.floor}
        self._void = {ticket: reason for ticket, reason in self._void.items() if ticket not in self.consumed}
        return self._void

    def version_counts(self, scored: ScoredGroup) -> bool:
        """Whether the weights that sampled the group are part of the history."""
        return self._rewinds is None or self._rewinds.version_counts(scored.model_attempt, scored.model_step)

    def prompt_of(self, ticket: int) -> int:
        """Number of the prompt that a claimed ticket asks."""
        return ticket if self._rewinds is None else self._rewinds.prompt_of(ticket)

    def num_samples(self) -> int:
        """Training sequences on the shelf."""
        return sum(sum(group.num_sequences) for group in self._waiting.values())

    def _is_void(self, ticket: int) -> bool:
        return self._rewinds is not None and self._rewinds.void(ticket) is not None

    def _is_new(self, ticket: int) -> bool:
        return ticket not in self._valid and ticket not in self._void and ticket not in self.consumed

    def _read(self, ticket: int) -> ScoredGroup:
        group = scored_from_arrow(self._folder.scored.demand(ticket), self._folder.scored.key(ticket))
        self.num_seen += 1
        self.tokens_seen += sum(group.num_forwarded_tokens)
        return group
