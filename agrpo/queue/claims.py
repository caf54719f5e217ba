"""Claims: who works on a ticket. Taking one is an exclusive create, so a ticket has one holder per try.

A claim only saves work from being done twice; what makes a result count is the slot, which is written once.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from agrpo.errors import RecordError
from agrpo.queue.topic import shard_of

if TYPE_CHECKING:
    from agrpo.queue.filesystems import Filesystem

_FOLDER = "claims"


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


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a run. `start` is always a floor below which nothing is listed."""

    filesystem: Filesystem

    def take(self, ticket: int, *, owner: str, base: int, number_try: int = 0) -> bool:
        """Claim the ticket, durably. False: another owner has that try.

        What an expired or dead owner holds is taken over by its next try, `holder(ticket).number_try + 1`.
        """
        claim = Claim(ticket=ticket, number_try=number_try, owner=owner, base=base, claimed_at=time.time())
        return self.filesystem.put(_key(ticket, number_try), json.dumps(asdict(claim)).encode())

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

    def holder(self, ticket: int) -> Claim | None:
        """The latest try at the ticket, or None where nobody has claimed it."""
        names = self.filesystem.list(f"{_FOLDER}/{shard_of(ticket)}")
        tries = [_number_try(name) for name in names if _ticket(name) == ticket]
        return self._read(ticket, max(tries)) if tries else None

    def of_owner(self, owner: str, start: int) -> list[Claim]:
        """The claims from `start` on whose latest try is this owner's. Reads each of them: for a start, not for a loop."""
        latest = [self._read(ticket, number_try) for ticket, number_try in self._latest_tries(start).items()]
        return [claim for claim in latest if claim is not None and claim.owner == owner]

    def _latest_tries(self, start: int) -> dict[int, int]:
        """The latest try of every claimed ticket. Names sort by ticket, then by try."""
        return {
            ticket: _number_try(name)
            for shard in self.filesystem.list(_FOLDER)
            if shard >= shard_of(start)
            for name in self.filesystem.list(f"{_FOLDER}/{shard}")
            if (ticket := _ticket(name)) >= start
        }

    def _read(self, ticket: int, number_try: int) -> Claim | None:
        key = _key(ticket, number_try)
        data = self.filesystem.get(key)
        if data is None:
            return None
        try:
            return Claim(**json.loads(data.to_pybytes()))
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.filesystem.url}/{key} is not a claim this version can read: {error}") from error


def _key(ticket: int, number_try: int) -> str:
    return f"{_FOLDER}/{shard_of(ticket)}/{ticket:012d}.{number_try:04d}.json"


def _ticket(name: str) -> int:
    return int(name.partition(".")[0])


def _number_try(name: str) -> int:
    return int(name.partition(".")[2].removesuffix(".json"))
