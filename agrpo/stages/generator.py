"""The generator: claims the lowest free ticket when it may, samples the ticket's group, publishes it.

It keeps no state that matters. A ticket's prompt is a pure function of (data seed, ticket), every request's seed of (run
seed, ticket, rollout, turn), and how far it may run ahead is read from the run folder.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import time
from dataclasses import replace
from enum import Enum, auto

from agrpo.config import RunConfig, load_settings
from agrpo.engines import Engine
from agrpo.errors import DeadlineExceeded, EngineError, PromptError, PromptRefused, StoreError
from agrpo.prompts import PromptOrder
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.queue.versions import newest_after, newest_version
from agrpo.records.arrow import group_to_arrow, scored_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.pace import Pace
from agrpo.records.progress import Hint, WeightsReady
from agrpo.records.prompt import Prompt
from agrpo.records.score import fills_step
from agrpo.stages.context import StageContext
from agrpo.stages.sampling import Renderer, sample_group
from agrpo.stages.serving import serve_version
from agrpo.staleness import may_generate

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.01
HINT_SECONDS = 0.05
FAILED_GROUPS_TO_STOP = 8
"""Groups in a row without a single answer: the engine is broken, not the prompts."""
BEAT_SECONDS = 1.0


def run(context: StageContext) -> None:
    """Generate until the learner has its last step or the run is asked to stop."""
    folder = RunFolder.open(context.run_url)
    config = RunConfig.build(load_settings(folder.document()))
    order = PromptOrder(config.prompts.source(), seed=config.data_seed, shuffle=config.prompts.shuffle)
    renderer = Renderer(config.model)
    engine = config.engine(config.model)
    asyncio.run(_Generator(context, folder, config, order=order, renderer=renderer, engine=engine).generate())


class _Hold(Enum):
    """What keeps a ticket from being started."""

    CONCURRENCY = auto()
    """As many rollouts as there may be are in flight."""
    END = auto()
    """The run needs no further group."""
    RUN_AHEAD = auto()
    """It would be too far ahead of training, in versions or in tokens."""


class _Generator:
    """One incarnation's loop. Everything here may be lost at any moment."""

    def __init__(
        self,
        context: StageContext,
        folder: RunFolder,
        config: RunConfig,
        *,
        order: PromptOrder,
        renderer: Renderer,
        engine: Engine,
    ) -> None:
        self.context = context
        self.folder = folder
        self.config = config
        self.order = order
        self.renderer = renderer
        self.engine = engine
        self.events = EventStream(folder, context.incarnation)
        self.base = 0
        self.serving: WeightsReady | None = None
        self.running: dict[int, asyncio.Task[None]] = {}
        self.tries: dict[int, int] = {}
        self.hint = Hint(limit_ticket=0, dropped=0, floor=0)
        self.lookahead = _Lookahead(folder, config)
        self.next_ticket = 0
        self.version_waits = False
        """A newer version is published, and requests still run that may not see another one."""
        self.failed_in_a_row = 0
        self.unserved: str | None = None
        """Why the newest version cannot be loaded."""
        self.looked_at = 0.0
        self.told_at = 0.0
        self.listed_at = 0.0
        self.moved_at = time.monotonic()
        self.held_seconds: float | None = None
        """How long run-ahead has kept the next ticket from being started; None: not at all."""
        self.held_at = self.moved_at
        self.ended_at: float | None = None
        """When a group ended last."""

    async def generate(self) -> None:
        try:
            self._take_over()
            while not self.context.stop.is_set() and not self.hint.finished:
                await self._turn()
        finally:
            for task in self.running.values():
                task.cancel()
            await asyncio.gather(*self.running.values(), return_exceptions=True)
            await self.engine.close()

    async def _turn(self) -> None:
        """Look at the learner's word, load what is new, start what may start, see what has ended."""
        if time.monotonic() - self.looked_at >= HINT_SECONDS:
            await self._look()
        while self.serving is not None and not self.version_waits:
            hold = self._hold(self.next_ticket)
            self._note(hold)
            if hold is not None:
                break
            self._start(self.next_ticket)
        ended = [ticket for ticket, task in self.running.items() if task.done()]
        for ticket in ended:
            self.running.pop(ticket).result()
        if ended:
            self.moved_at = time.monotonic()
        waited = time.monotonic() - self.moved_at
        if waited > self.config.stop.stall_seconds:
            raise DeadlineExceeded(
                f"waited {waited:.0f} s for {self._waiting_for()}; the limit is {self.config.stop.stall_seconds:.0f} s "
                "(stop.stall_seconds)"
            )
        await asyncio.sleep(POLL_SECONDS)

    def _waiting_for(self) -> str:
        if self.unserved is not None:
            return f"weights that can be loaded ({self.unserved})"
        if self.serving is None:
            return "the first version of the weights"
        if self.running:
            return f"the engine to complete ticket {min(self.running)}"
        return f"leave to start ticket {self.next_ticket} (serving version {self.serving.version})"

    async def _look(self) -> None:
        """Read the hint, load a newer version, and skip the tickets that are claimed."""
        self.looked_at = time.monotonic()
        hint = self.folder.hint()
        if hint is not None and hint != self.hint:
            self.hint = hint
            self.moved_at = self.looked_at
        if self.unserved is None or self.looked_at - self.told_at >= BEAT_SECONDS:
            await self._load_newest()
        if self.looked_at - self.told_at >= BEAT_SECONDS:
            self.told_at = self.looked_at
            self.folder.beat("generator", None if self.running else self._waiting_for(), self.looked_at - self.moved_at)

    async def _load_newest(self) -> None:
        ready = self._newest()
        if ready is None or (self.serving is not None and ready.version == self.serving.version):
            return
        self.version_waits = bool(self.running) and (self.config.lockstep or self.config.sampling.reproducible)
        if self.version_waits:
            return
        try:
            await serve_version(self.folder, self.engine, ready, self.context.incarnation, self.config.model.dtype)
        except StoreError as error:
            # A learner that begins writes them again; until then the version served so far goes on.
            if self.unserved is None:
                logger.warning("version %d cannot be served yet: %s", ready.version, error)
            self.unserved = str(error)
            return
        self.unserved = None
        self.serving, self.base = ready, ready.attempt
        self.moved_at = time.monotonic()
        self.ended_at = self.ended_at or self.moved_at
        logger.info("serving version %d (step %d)", ready.version, ready.step)
        self.events.write("version_served", version=ready.version, step=ready.step)

    def _newest(self) -> WeightsReady | None:
        """The newest version; the chain of attempts is read again once a second."""
        if self.serving is not None and self.looked_at - self.listed_at < BEAT_SECONDS:
            return newest_after(self.folder, self.serving)
        self.listed_at = self.looked_at
        return newest_version(self.folder)

    def _take_over(self) -> None:
        """Groups that an earlier incarnation claimed and did not publish are generated first."""
        stage, hint = self.context.stage, self.folder.hint()
        # Below the floor every ticket is consumed.
        self.next_ticket = hint.floor if hint is not None else 0
        for ticket in self.folder.claims.tickets(self.next_ticket):
            claim = self.folder.claims.holder(ticket)
            if claim is not None and claim.owner.startswith(f"{stage}-") and not self.folder.groups.exists(ticket):
                self.tries[ticket] = claim.number_try + 1
        if self.tries:
            logger.info("taking over %d claims of an earlier incarnation: %s", len(self.tries), sorted(self.tries))

    def _hold(self, ticket: int) -> _Hold | None:
        """The bound that this ticket has to wait for; None: it may begin."""
        rollouts = (len(self.running) + 1) * self.config.sampling.num_generations
        if rollouts > self.config.asynchronous.max_concurrent_rollouts:
            return _Hold.CONCURRENCY
        if self.config.stop.max_steps is None and self.config.stop.epochs is not None:
            if ticket >= self.config.stop.epochs * len(self.order):
                return _Hold.END
        if ticket in self.tries:
            return None
        if self.hint.limit_ticket is not None and ticket >= self.hint.limit_ticket:
            return _Hold.RUN_AHEAD
        assert self.serving is not None
        dropped = self.lookahead.dropped_before(ticket) if self.config.lockstep else self.hint.dropped
        if self.config.stop.max_steps is not None:
            if ticket - dropped >= self.config.stop.max_steps * self.config.step.groups:
                return _Hold.END
        in_time = may_generate(
            ticket,
            dropped,
            self.serving.version,
            self.config.groups_per_version,
            self.config.asynchronous.max_staleness,
        )
        return None if in_time else _Hold.RUN_AHEAD

    def _note(self, hold: _Hold | None) -> None:
        """Keep the time for which run-ahead holds the next ticket back."""
        now = time.monotonic()
        if self.held_seconds is not None:
            self.held_seconds += now - self.held_at
        elif hold is _Hold.RUN_AHEAD and self.hint.written_at:  # before the learner's first word, nobody holds
            self.held_seconds = 0.0
        self.held_at = now

    def _start(self, ticket: int) -> None:
        """Claim the ticket and begin its group, unless another worker has it."""
        self.next_ticket = ticket + 1
        number_try = self.tries.pop(ticket, 0)
        owner = self.context.incarnation
        held, self.held_seconds = self.held_seconds, None
        if self.folder.claims.take(ticket, owner=owner, base=self.base, number_try=number_try):
            rollouts = (len(self.running) + 1) * self.config.sampling.num_generations
            cap = self.config.asynchronous.max_concurrent_rollouts
            pace = Pace(concurrency=rollouts, concurrency_cap=cap, backpressure_seconds=held)
            self.running[ticket] = asyncio.create_task(self._generate_group(ticket, number_try, pace))

    async def _generate_group(self, ticket: int, number_try: int, pace: Pace) -> None:
        claimed_at = time.time()
        assert self.serving is not None
        version = self.serving.version
        prompt, rollouts, refusal = Prompt(id="", messages=[]), [], None
        try:
            prompt = self.order.prompt(ticket)
            ids = self.renderer.render(prompt.messages)
            seeds = (self.config.run.seed, ticket)
            rollouts = await sample_group(self.engine, self.renderer, ids, self.config.sampling, seeds)
        except (PromptError, PromptRefused) as error:
            logger.warning("ticket %d: prompt refused: %s", ticket, error)
            refusal = str(error)
        first = [turn.output_versions[0] for rollout in rollouts for turn in rollout.turns[:1] if turn.output_versions]
        group = RolloutGroup(
            ticket=ticket,
            prompt=prompt,
            rollouts=rollouts,
            model_version=min(first, default=version),
            base=self.base,
            claim_try=number_try,
            generator=self.context.incarnation,
            refusal=refusal,
            claimed_at=claimed_at,
            finished_at=time.time(),
            pace=replace(pace, interval_seconds=self._interval()),
        )
        if not self.folder.groups.publish(ticket, group_to_arrow(group)):
            logger.info("ticket %d was published by another worker first", ticket)
        self._tell_failures(group)

    def _interval(self) -> float:
        """Seconds since a group ended last, and the next interval begins."""
        assert self.ended_at is not None, "no group ends before a version is served"
        began, self.ended_at = self.ended_at, time.monotonic()
        return self.ended_at - began

    def _tell_failures(self, group: RolloutGroup) -> None:
        """Say which rollouts failed. Raises `EngineError` where nothing comes back any more."""
        failed = [rollout for rollout in group.rollouts if rollout.failed]
        self.failed_in_a_row = self.failed_in_a_row + 1 if failed and len(failed) == len(group.rollouts) else 0
        if failed:
            waited = max(rollout.duration_seconds for rollout in failed)
            logger.warning(
                "ticket %d: %d of %d rollouts failed after %.1f s: %s",
                *(group.ticket, len(failed), len(group.rollouts), waited, failed[0].error),
            )
            self.events.write(
                "rollouts_failed",
                ticket=group.ticket,
                failed=len(failed),
                waited_seconds=waited,
                reason=failed[0].error,
            )
        if self.failed_in_a_row >= FAILED_GROUPS_TO_STOP:
            raise EngineError(
                f"the engine answered no request of {self.failed_in_a_row} groups in a row, last: {failed[0].error}; the "
                "prompts are not to blame. Mend the engine, then `agrpo resume` this run"
            )


class _Lookahead:
    """In lockstep: how many tickets before one will not fill a step, by their scores alone."""

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._folder = folder
        self._zero_variance = config.zero_variance
        self._seen: set[int] = set()
        self._replaced: list[int] = []
        """Tickets that take no place, ascending."""
        self._next = 0

    def dropped_before(self, ticket: int) -> int:
        for number in self._folder.scored.numbers(self._next):
            if number not in self._seen:
                data = self._folder.scored.read(number)
                assert data is not None, f"scored slot {number} was listed and is gone"
                self._seen.add(number)
                if not fills_step(scored_from_arrow(data).marks, self._zero_variance):
                    bisect.insort(self._replaced, number)
        while self._next in self._seen:
            self._seen.remove(self._next)
            self._next += 1
        return bisect.bisect_left(self._replaced, ticket)
