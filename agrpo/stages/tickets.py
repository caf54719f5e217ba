"""Tickets as one generator sees them: which comes next, which it has to take over, and which prompt each one asks.

Nothing here decides anything that is not written: all of it follows from claims, bases and the learner's hint.
"""

from __future__ import annotations

import logging

from agrpo.config import RunConfig
from agrpo.queue.lineage import members
from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.versions import newest_after, newest_version
from agrpo.records.progress import Base, Hint, WeightsReady
from agrpo.stages.context import name_of
from agrpo.stages.leases import Leases
from agrpo.stages.lookahead import Lookahead

logger = logging.getLogger(__name__)

CHAIN_SECONDS = 1.0
"""Between two looks at the chain of attempts."""


class Tickets:
    """The tickets of a run, under the chain of attempts as it was last seen."""

    def __init__(self, folder: RunFolder, config: RunConfig, stage: str) -> None:
        self._folder = folder
        self._config = config
        self._stage = stage
        self._bases: dict[int, Base] = {}
        self._newest: WeightsReady | None = None
        self._listed_at = 0.0
        self._leases = Leases(folder, stage, config.workers.lease_seconds)
        self._lookahead = Lookahead(folder, config)
        self.base = 0
        """Newest attempt of the chain, whose version is served: what claims are made under."""
        self.rewinds = Rewinds({}, folder.claims.base_of)
        self.next = 0
        self.tries: dict[int, int] = {}
        """Tickets to take over, each with the try that does it."""

    def newest_version(self, now: float) -> WeightsReady | None:
        """The newest version of the chain, which is read again once a second."""
        if self._newest is None or now - self._listed_at >= CHAIN_SECONDS:
            self._listed_at = now
            self._bases = self._folder.bases()
            self._newest = newest_version(self._folder, bases=self._bases)
        elif self._newest.attempt == members(self._bases)[0].attempt:
            self._newest = newest_after(self._folder, self._newest)
        return self._newest

    def see_bases(self) -> None:
        """Claim under the chain as it was when the version now served was looked for, and ask the prompts it says."""
        chain = members(self._bases)
        if chain and chain[0].attempt != self.base:
            before, self.base = self.rewinds, chain[0].attempt
            self.rewinds = Rewinds(self._bases, self._folder.claims.base_of, before)
            if self.rewinds.newest != before.newest:
                self._lookahead = Lookahead(self._folder, self._config)

    def take_over(self, hint: Hint | None) -> None:
        """Groups that an earlier incarnation claimed and did not publish are generated first."""
        self._bases = self._folder.bases()
        self.see_bases()
        # Below the floor every ticket is consumed.
        self.next = hint.floor if hint is not None else 0
        self._begin_lookahead(hint)
        for ticket in self._folder.claims.tickets(self.next):
            claim = self._folder.claims.holder(ticket)
            if claim is None or name_of(claim.owner) != self._stage or self.rewinds.void(ticket) is not None:
                continue
            if not self._folder.groups.exists(ticket):
                self.tries[ticket] = claim.number_try + 1
        if self.tries:
            logger.info("taking over %d claims of an earlier incarnation: %s", len(self.tries), sorted(self.tries))

    def relieve(self, floor: int, running: set[int]) -> None:
        """Take over what generators that are gone had claimed."""
        lapsed = self._leases.lapsed(floor)
        found = {ticket: n for ticket, n in lapsed.items() if ticket not in running and not self.rewinds.void(ticket)}
        if found:
            logger.warning(
                "taking over %d claims of generators that have long been silent: %s", len(found), sorted(found)
            )
            self.tries |= found
            self.next = min(self.next, *found)

    def dropped_before(self, ticket: int) -> int:
        """In lockstep: groups before this ticket that take no place in a step."""
        return self._lookahead.dropped_before(ticket, self.rewinds)

    def _begin_lookahead(self, hint: Hint | None) -> None:
        """Take the learner's word for the tickets below its floor, unless the run went back since it was said."""
        if hint is None or hint.replaced_below_floor is None or hint.attempt is None:
            return
        if hint.attempt >= self.rewinds.newest:
            floor, replaced = hint.floor, hint.replaced_below_floor
            self._lookahead = Lookahead(self._folder, self._config, floor=floor, replaced=replaced)
