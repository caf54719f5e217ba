"""Making one group: a claimed ticket's prompt is asked, and what came of it is published."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from itertools import chain

from agrpo.errors import PromptError, PromptRefused
from agrpo.prompts import PromptOrder
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.arrow import group_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.pace import Pace
from agrpo.records.progress import WeightsReady
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout
from agrpo.stages.load_watch import LoadWatch
from agrpo.stages.pay_watch import PayWatch
from agrpo.stages.rollout_hooks import RolloutHooks
from agrpo.stages.sampling import all_failed
from agrpo.stages.slots import Slot
from agrpo.threads import on_thread
from agrpo.tools.caller import TICKET

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.01
FAILED_GROUPS_TO_STOP = 8
"""Groups in a row without a single answer: the engine is broken, not the prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A ticket this incarnation works on, as things stood when it was claimed."""

    ticket: int
    number_try: int
    base: int
    """Newest attempt of the chain."""
    prompt_number: int
    version: int
    """Served then."""
    pace: Pace


class GroupMaker:
    """Makes the groups of one generator, several side by side."""

    def __init__(
        self,
        folder: RunFolder,
        incarnation: str,
        *,
        order: PromptOrder,
        hooks: RolloutHooks,
        load: LoadWatch,
        events: EventStream,
    ) -> None:
        self.served: dict[int, WeightsReady] = {}
        """What this incarnation has served, by version."""
        self.proved: set[int] = set()
        """Versions whose probe agreed: only what they sampled is published."""
        self._folder = folder
        self._incarnation = incarnation
        self._order = order
        self._hooks = hooks
        self._load = load
        self._events = events
        self._unproved: dict[int, set[int]] = {}
        """Versions whose probe the groups of these tickets wait for."""
        self._in_publishing: set[int] = set()
        """Tickets whose groups the store is given."""
        self._failed_in_a_row = 0
        self._pay = PayWatch()
        self._ended_at: float | None = None
        """When a group ended last."""

    def begin_interval(self) -> None:
        """The time between two groups runs, from the first version served on."""
        self._ended_at = self._ended_at or time.monotonic()

    async def make(self, claimed: Claimed, slots: list[Slot]) -> None:
        """Ask the ticket's prompt once for each slot and publish the group. Closes the slots.

        Raises `EngineError` or `EnvironmentFault` where nothing comes back any more, and what sampling raises.
        """
        claimed_at = time.time()
        TICKET.set(claimed.ticket)  # of this task and those it begins
        prompt, rollouts = Prompt(id="", messages=[]), list[Rollout]()
        refusal = left_out = None
        try:
            prompt = self._order.prompt(claimed.prompt_number)
            left_out = self._hooks.leaves_out(self._order, claimed.prompt_number, prompt)
            if left_out is None:
                rollouts = await self._hooks.sample(prompt, claimed.ticket, claimed.version, slots)
        except (PromptError, PromptRefused) as error:
            logger.warning("ticket %d: prompt refused: %s", claimed.ticket, error)
            refusal = str(error)
        finally:
            for slot in slots:
                slot.close()
        versions = {*chain.from_iterable(turn.output_versions for rollout in rollouts for turn in rollout.turns)}
        await self._prove(claimed.ticket, versions)
        first = [turn.output_versions[0] for rollout in rollouts for turn in rollout.turns[:1] if turn.output_versions]
        sampled_by = self.served[min(first, default=claimed.version)]
        group = RolloutGroup(
            ticket=claimed.ticket,
            prompt=prompt,
            rollouts=rollouts,
            model_version=sampled_by.version,
            model_attempt=sampled_by.attempt,
            model_step=sampled_by.step,
            model_ordinal=sampled_by.ordinal_or_version,
            base=claimed.base,
            claim_try=claimed.number_try,
            generator=self._incarnation,
            refusal=refusal or left_out,
            filtered=left_out is not None,
            claimed_at=claimed_at,
            finished_at=time.time(),
            queued_at=time.monotonic(),
            pace=self._load.told(replace(claimed.pace, interval_seconds=self._interval())),
        )
        if not await self._published(group):
            logger.info("ticket %d was published by another worker first", group.ticket)
        self._tell_failures(group)
        self._pay.count(group)

    def waits_for(self, ticket: int) -> str:
        """What the group of a ticket that is being made waits for, to go before "to complete ticket …"."""
        unproved = self._unproved.get(ticket, set()) - self.proved
        if unproved:
            return f"the probe of version {min(unproved)}, which sampled it,"
        if ticket in self._in_publishing:
            return "the store to take its group"
        return self._hooks.who_answers(ticket)

    async def _prove(self, ticket: int, versions: set[int]) -> None:
        """Wait until the probes of these versions have agreed; where one does not, this generator ends."""
        self._unproved[ticket] = versions
        try:
            while not versions <= self.proved:
                await asyncio.sleep(POLL_SECONDS)
        finally:
            del self._unproved[ticket]

    async def _published(self, group: RolloutGroup) -> bool:
        """Whether it is ours that is read. On a thread: writing and confirming it would hold up every rollout of the loop."""
        self._in_publishing.add(group.ticket)
        try:
            return await on_thread(lambda: self._folder.groups.publish(group.ticket, group_to_arrow(group)))
        finally:
            self._in_publishing.discard(group.ticket)

    def _interval(self) -> float:
        """Seconds since a group ended last, and the next interval begins."""
        assert self._ended_at is not None, "no group ends before a version is served"
        began, self._ended_at = self._ended_at, time.monotonic()
        return self._ended_at - began

    def _tell_failures(self, group: RolloutGroup) -> None:
        """Say which rollouts failed. Raises `EngineError` or `EnvironmentFault` where nothing comes back any more."""
        if group.filtered:
            return
        failed = [rollout for rollout in group.rollouts if rollout.failed and not rollout.broken_off]
        self._failed_in_a_row = self._failed_in_a_row + 1 if failed and len(failed) == len(group.rollouts) else 0
        if failed:
            waited = max(rollout.duration_seconds for rollout in failed)
            logger.warning(
                "ticket %d: %d of %d rollouts failed after %.1f s: %s",
                *(group.ticket, len(failed), len(group.rollouts), waited, failed[0].error),
            )
            self._events.write(
                "rollouts_failed",
                ticket=group.ticket,
                failed=len(failed),
                waited_seconds=waited,
                reason=failed[0].error,
            )
        if self._failed_in_a_row >= FAILED_GROUPS_TO_STOP:
            raise all_failed(self._failed_in_a_row, failed[0])
