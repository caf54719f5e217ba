"""Claims: who works on a ticket. Taking one is an exclusive create, so a ticket has one holder per try.

A claim only saves work from being done twice; what makes a result count is the slot, which is written once.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from agrpo.errors import RecordError
from agrpo.queue.shards import Shards, ticket_of
from agrpo.records.checksum import DOCUMENT_KEY, check_document, sealed_document

if TYPE_CHECKING:
    from agrpo.queue.filesystems import Filesystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One try at a ticket."""

    ticket: int
    number_try: int
    """0, and one more each time the ticket was taken over."""
    owner: str
    """Incarnation of the generator."""
    base: int
    """Attempt under whose base the ticket was claimed."""
    claimed_at: float
    """Unix seconds, by the owner's clock."""


class Claims:
    """The claims of a run, in their place or archived. `start` is always a floor below which nothing is listed."""

    def __init__(self, filesystem: Filesystem) -> None:
        self.shards = Shards(filesystem, "claims", r"\.[0-9]{4}\.json")

    def take(self, ticket: int, *, owner: str, base: int, number_try: int = 0) -> bool:
        """Claim the ticket, durably. False: another owner has that try.

        What an expired or dead owner holds is taken over by its next try, `holder(ticket).number_try + 1`.
        """
        claim = Claim(ticket=ticket, number_try=number_try, owner=owner, base=base, claimed_at=time.time())
        return self.shards.put(_name(ticket, number_try), sealed_document(json.dumps(asdict(claim)).encode()))

    def tickets(self, start: int) -> list[int]:
        """The claimed tickets from `start` on, ascending."""
        return list(self._latest_tries(start))

    def lowest_free(self, start: int) -> int:
        """The lowest ticket from `start` on that nobody has claimed."""
        free = start
        for ticket in self.tickets(start):
            if ticket != free:
                break
            free += 1
        return free

    def next_free(self) -> int:
        """The ticket above every one that was ever claimed."""
        highest = self.shards.highest()
        return 0 if highest is None else highest + 1

    def holder(self, ticket: int) -> Claim | None:
        """The latest try at the ticket, or None where nobody has claimed it."""
        names = self.shards.of_ticket(ticket)
        return self._read(names[-1]) if names else None

    def base_of(self, ticket: int) -> int | None:
        """The base under which the ticket was claimed first; None where nobody has claimed it."""
        first = self._read(_name(ticket, 0))
        return None if first is None else first.base

    def of_owner(self, owner: str, start: int) -> list[Claim]:
        """The claims from `start` on whose latest try is this owner's. Reads each of them: for a start, not for a loop."""
        latest = [self._read(name) for name in self._latest_tries(start).values()]
        return [claim for claim in latest if claim is not None and claim.owner == owner]

    def _latest_tries(self, start: int) -> dict[int, str]:
        """The name of the latest try by ticket. Names sort by ticket, then by try."""
        return {ticket_of(name): name for name in self.shards.names(start)}

    def _read(self, name: str) -> Claim | None:
        data = self.shards.get(name)
        if data is None:
            return None
        where = f"{self.shards.filesystem.url}/{self.shards.key(name)}"
        try:
            document = json.loads(text := data.to_pybytes())
            check_document(text, document, where)
            document.pop(DOCUMENT_KEY, None)
            return Claim(**document)
        except RecordError:
            raise
        except (TypeError, ValueError) as error:
            raise RecordError(f"{where} is not a claim this version can read: {error}") from error


def _name(ticket: int, number_try: int) -> str:
    return f"{ticket:012d}.{number_try:04d}.json"
