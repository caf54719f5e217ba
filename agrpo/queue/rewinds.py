"""Going back: which tickets are void since, and which prompt a ticket asks.

Both are pure functions of the bases and of the claims below the ticket. Claims go lowest first, so when a ticket is claimed
its prompt is settled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

from agrpo.queue.lineage import members
from agrpo.records.progress import Base, DropReason

BaseOf = Callable[[int], int | None]
"""Attempt under whose base a ticket was first claimed; None while it is not."""


class Rewinds:
    """What the chain of the highest base says of tickets and versions. Reads each claim once."""

    def __init__(self, bases: Mapping[int, Base], base_of: BaseOf, before: Rewinds | None = None) -> None:
        """`before`: of the same run when it had fewer bases; what it has read is not read again."""
        chain = members(bases)
        self._bases = [bases[member.attempt] for member in chain if bases[member.attempt].first_ticket is not None]
        """Newest first."""
        self._given_up = frozenset(ticket for base in self._bases for ticket in base.reissue)
        self._through = {member.attempt: member.through for member in chain}
        self._base_of = base_of
        known = {} if before is None else before._late
        self._late = {base.attempt: known.get(base.attempt) or _Late(base, base_of) for base in self._bases}

    @property
    def newest(self) -> int:
        """Attempt that went back last; -1: none did."""
        return self._bases[0].attempt if self._bases else -1

    def __bool__(self) -> bool:
        """Whether the run ever went back."""
        return bool(self._bases)

    def version_counts(self, attempt: int, step: int | None) -> bool:
        """Whether what was sampled by the weights of this step of this attempt may be trained."""
        if step is None:
            return True
        through = self._through.get(attempt, -1)
        return through is None or step <= through

    def void(self, ticket: int) -> DropReason | None:
        """Why a claimed ticket is void; None: it counts."""
        if ticket in self._given_up:
            return DropReason.REISSUED
        rewind = self._before(ticket)
        return DropReason.VOID_BASE if rewind is not None and self._late[rewind.attempt].has(ticket) else None

    def void_tickets(self, claimed: Iterable[int]) -> dict[int, DropReason]:
        """Those of the claimed tickets that are void, and every ticket that was given up, by ticket."""
        found = {ticket: self.void(ticket) for ticket in sorted({*claimed, *self._given_up})} if self._bases else {}
        return {ticket: reason for ticket, reason in found.items() if reason is not None}

    def void_below(self, ticket: int) -> set[int]:
        """The void tickets below this one, every one of which must be claimed."""
        late = [self._late[base.attempt].below(ticket) for base in self._bases]
        return {number for number in self._given_up if number < ticket}.union(*late)

    def prompt_of(self, ticket: int) -> int:
        """Number of the prompt that the ticket asks. Every ticket below it must be claimed."""
        rewind = self._before(ticket)
        if rewind is None:
            return ticket
        first, following = self._left(rewind, ticket)
        return first[0] if first else following

    def left(self, ticket: int) -> tuple[list[int], int]:
        """The prompts of the tickets from this one on: numbers that are given out first, and the one to go on from."""
        rewind = self._before(ticket)
        return ([], ticket) if rewind is None else self._left(rewind, ticket)

    def _left(self, rewind: Base, ticket: int) -> tuple[list[int], int]:
        place = ticket - _first_ticket(rewind) - self._late[rewind.attempt].num_below(ticket)
        return rewind.prompts[place:], rewind.next_prompt + max(0, place - len(rewind.prompts))

    def _before(self, ticket: int) -> Base | None:
        """The newest rewind that the ticket was claimed after."""
        return next((base for base in self._bases if ticket >= _first_ticket(base)), None)


class _Late:
    """The tickets from a rewind on that were claimed by who had not seen it."""

    def __init__(self, rewind: Base, base_of: BaseOf) -> None:
        self._attempt = rewind.attempt
        self._base_of = base_of
        self._tickets: list[int] = []
        self._next = _first_ticket(rewind)
        """The first whose claim was not looked at."""

    def has(self, ticket: int) -> bool:
        base = self._base_of(ticket)
        return base is not None and base < self._attempt

    def num_below(self, ticket: int) -> int:
        return len(self.below(ticket))

    def below(self, ticket: int) -> list[int]:
        """Of the tickets from the rewind on and below this one, up to the next rewind that was known when they were claimed."""
        while self._next < ticket:
            if self.has(self._next):
                self._tickets.append(self._next)
            self._next += 1
        return self._tickets[: bisect_left(self._tickets, ticket)]


def _first_ticket(base: Base) -> int:
    assert base.first_ticket is not None
    return base.first_ticket
