"""The generator: claims the lowest free ticket when it may, samples the ticket's group, publishes it.

It keeps no state that matters. A ticket's prompt is a pure function of (data seed, ticket), every request's seed of (run
seed, ticket, rollout, turn), and how far it may run ahead is read from the run folder.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from agrpo.config import RunConfig, load_settings
from agrpo.engines import Engine, Needs
from agrpo.errors import DeadlineExceeded, ModelError, StoreError
from agrpo.prompts import PromptOrder
from agrpo.queue.room import Room
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.queue.versions import version_of_label
from agrpo.records.pace import Limit, Pace, Standing
from agrpo.records.progress import Hint, WeightsReady
from agrpo.stages.chosen_template import unfit_template
from agrpo.stages.context import StageContext
from agrpo.stages.group_making import Claimed, GroupMaker
from agrpo.stages.load_watch import LoadWatch
from agrpo.stages.rendering import Renderer
from agrpo.stages.rollout_hooks import RolloutHooks
from agrpo.stages.same_machine import check_machine
from agrpo.stages.scoring_queue import ScoringQueue
from agrpo.stages.serving import Serving
from agrpo.stages.slots import Slot, Slots
from agrpo.stages.tickets import Tickets
from agrpo.stages.turn_taking import TurnTaking
from agrpo.stages.waits import Waits
from agrpo.staleness import may_generate
from agrpo.threads import UnawaitedThreads, on_thread

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.01
HINT_SECONDS = 0.05
BEAT_SECONDS = 1.0
STORE_TO_CLAIM = "the store to take a claim"
"""What a generator says it waits for meanwhile."""


def run(context: StageContext) -> None:
    """Generate until the learner has its last step or the run is asked to stop."""
    folder = RunFolder.open(context.run_url)
    config = RunConfig.build(load_settings(folder.document()))
    order = PromptOrder(config.prompts.source(), seed=config.data_seed, shuffle=config.prompts.shuffle)
    renderer = Renderer(config.model)
    if (problem := unfit_template(config.model.chat_template, renderer)) is not None:
        raise ModelError(problem)  # of a hub id nobody could look before
    needs = Needs(
        servers=folder.server_urls,
        give_up=folder.give_up_server,
        version_of=partial(version_of_label, folder),
        sampling=config.sampling,
        max_staleness=config.asynchronous.max_staleness,
        adapter_rank=config.served_adapter_rank,
    )
    engine = config.engine(config.model, needs)
    asyncio.run(_Generator(context, folder, config, order=order, renderer=renderer, engine=engine).generate())


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
        self.engine = engine
        self.hooks = RolloutHooks(config, renderer, engine)
        self.events = EventStream(folder, context.incarnation)
        self.room = Room(folder, max_bytes=config.store.max_bytes, min_free_bytes=config.store.min_free_bytes)
        self.tickets = Tickets(folder, config, context.stage)
        self.slots = Slots(config.asynchronous.max_concurrent_rollouts)
        self.load = LoadWatch(engine, self.slots)
        self.unscored = ScoringQueue(folder, config.asynchronous.scoring_queue)
        self.waits = Waits()
        self.loader = Serving(folder, engine, context.incarnation, config.model.served_dtype)
        self.maker = GroupMaker(
            folder,
            context.incarnation,
            order=order,
            hooks=self.hooks,
            load=self.load,
            events=self.events,
        )
        self.turn = TurnTaking(folder, config, context.incarnation)
        self.loading: asyncio.Task[None] | None = None
        """A version on its way into the engine; no ticket is started meanwhile."""
        self.serving: WeightsReady | None = None
        self.running: dict[int, asyncio.Task[None]] = {}
        self.hint = Hint(limit_ticket=0, dropped=0, floor=0)
        self.version_waits = False
        """A newer version is published, and requests still run that may not see another one."""
        self.unserved: str | None = None
        """Why the newest version cannot be loaded."""
        self.looked_at = 0.0
        self.told_at = 0.0
        self.moved_at = time.monotonic()

    async def generate(self) -> None:
        asyncio.get_running_loop().set_default_executor(UnawaitedThreads(thread_name_prefix="asyncio"))
        try:
            async with self.hooks.in_use(self.context.stop, partial(self.folder.beat, self.context.stage)):
                await self._generate()
        finally:
            await self.engine.close()

    async def _generate(self) -> None:
        watching = asyncio.create_task(self.load.watch())
        self.moved_at = time.monotonic()
        try:
            self.tickets.take_over(self.folder.hint())
            while not self.context.stop.is_set() and not self.folder.has_finished(self.hint):
                await self._turn()
                if watching.done():
                    watching.result()
        finally:
            tasks = [watching, *self.running.values(), *([self.loading] if self.loading else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self) -> None:
        """Look at the learner's word, load what is new, start what may start, see what has ended."""
        if self._hint_is_due:
            await self._look()
        await self._start_next()
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
        await self._pause()

    @property
    def _hint_is_due(self) -> bool:
        return time.monotonic() - self.looked_at >= HINT_SECONDS

    async def _start_next(self) -> None:
        """Start one ticket after the other, until something holds the next one back, or the hint is to be read."""
        limit: Limit | None = None
        if self.serving is not None and not self.version_waits and self.loading is None:
            hold: Limit | Literal["end"] | None = None
            while not self.context.stop.is_set() and (hold := self._hold(self.tickets.next)) is None:
                await self._start(self.tickets.next)
                if self._hint_is_due:
                    break  # each claim takes the store a while
            if hold != "end" and (hold is not Limit.RUN_AHEAD or self.hint.written_at):
                limit = hold  # before the learner's first word, nobody holds
        self.waits.note(limit)

    async def _pause(self) -> None:
        """Wait for a moment, or until the version on its way is served."""
        if self.loading is None:
            await asyncio.sleep(POLL_SECONDS)
            return
        await asyncio.wait({self.loading}, timeout=POLL_SECONDS)
        if self.loading.done():
            task, self.loading = self.loading, None
            task.result()

    def _waiting_for(self) -> str:
        if self.unserved is not None:
            return f"weights that can be loaded ({self.unserved})"
        if self.loading is not None:
            return "the engine, its servers included, to take the newest weights"
        if self.serving is None:
            return "the first version of the weights"
        if self.running:
            return f"{self.maker.waits_for(min(self.running))} to complete ticket {min(self.running)}"
        if self.waits.held_by is Limit.SCORING:
            return f"scores of {len(self.unscored)} groups (async.scoring_queue = {self.unscored.size})"
        return f"leave to start ticket {self.tickets.next} (serving version {self.serving.version})"

    async def _look(self) -> None:
        """Read the hint, load a newer version, and skip the tickets that are claimed. Raises `StoreFull`."""
        self.looked_at = time.monotonic()
        hint = self.folder.hint()
        if hint is not None and hint != self.hint:
            self.hint = hint
            self.moved_at = self.looked_at
        if self.unscored.is_full and self.unscored.look(self.hint.floor):
            self.moved_at = self.looked_at
        if self.loading is None and (self.unserved is None or self.looked_at - self.told_at >= BEAT_SECONDS):
            self._load_newest()
        if self.looked_at - self.told_at >= BEAT_SECONDS:
            self.told_at = self.looked_at
            self.room.check()
            waiting_for = None if self.running else self._waiting_for()
            self.folder.beat(self.context.stage, waiting_for, self.looked_at - self.moved_at, self._standing())
            self.tickets.relieve(self.hint.floor, {*self.running})

    def _standing(self) -> Standing:
        self.unscored.look(self.hint.floor)
        return Standing(
            in_flight=self.slots.in_use,
            cap=self.slots.capacity,
            ceiling=self.load.ceiling,
            unscored=len(self.unscored),
            queue=self.unscored.size,
            held_by=self.waits.held_by,
            held_seconds=self.waits.held_seconds,
        )

    def _load_newest(self) -> None:
        ready = self._due()
        if ready is None:
            return
        if self.serving is not None and ready.version == self.serving.version:
            self.version_waits = False
            self.tickets.see_bases()
            if self.engine.behind:
                self.loading = asyncio.create_task(self._serve(self.serving))
            return
        apart = (self.config.lockstep or self.config.sampling.reproducible) and not self.turn.is_there(ready)
        self.version_waits = bool(self.running) and apart
        if self.version_waits:
            return
        if self.serving is None and self.config.sampling.reproducible:
            check_machine(self.folder, self.config)  # an attempt is written before any version
        self.maker.served[ready.version] = ready  # a request that runs on may end under it before it is acknowledged
        self.loading = asyncio.create_task(self._serve(ready))

    def _due(self) -> WeightsReady | None:
        """The version to serve: the newest, unless one before it was pushed and has not been proved."""
        newest = self.tickets.newest_version(time.monotonic())
        return None if newest is None else self.turn.first(newest, self.serving, self.maker.proved)

    async def _serve(self, ready: WeightsReady) -> None:
        """Have the engine serve a version; where its weights cannot be read, the version served so far goes on."""
        try:
            async with self.turn.taken(ready.version):
                if (due := self._due()) is not None and due.version != ready.version:
                    return  # another one was pushed meanwhile
                await self.loader.serve(ready)
        except StoreError as error:
            # A learner that begins writes them again.
            if self.unserved is None:
                logger.warning("version %d cannot be served yet: %s", ready.version, error)
            self.unserved = str(error)
            return
        self.unserved = None
        if self.serving is None:
            await self.load.look()  # the first rollouts are to find the cap
        self.serving = ready
        self.maker.proved.add(ready.version)
        self.tickets.see_bases()
        self.moved_at = time.monotonic()
        self.maker.begin_interval()
        logger.info("serving version %d (step %d)", ready.version, ready.step)
        self.events.write("version_served", version=ready.version, step=ready.step)

    def _hold(self, ticket: int) -> Limit | Literal["end"] | None:
        """The limit that this ticket has to wait for; None: it may begin; `end`: the run needs no further group."""
        if (full := self._full()) is not None:
            return full
        if self.config.stop.max_steps is None and self.config.stop.epochs is not None:
            if self.tickets.rewinds.prompt_of(ticket) >= self.config.stop.epochs * len(self.order):
                return "end"
        if (
            ticket in self.tickets.tries and not self.config.lockstep
        ):  # in lockstep the version decides the weights to come
            return None
        if self.hint.limit_ticket is not None and ticket >= self.hint.limit_ticket:
            return Limit.RUN_AHEAD
        assert self.serving is not None
        dropped = self.tickets.dropped_before(ticket) if self.config.lockstep else self.hint.dropped
        if self.config.stop.max_steps is not None:
            if ticket - dropped >= self.config.stop.max_steps * self.config.step.groups:
                return "end"
        in_time = may_generate(
            ticket,
            dropped,
            self.serving.ordinal_or_version,
            self.config.groups_per_version,
            self.config.asynchronous.max_staleness,
        )
        return None if in_time else Limit.RUN_AHEAD

    def _full(self) -> Limit | None:
        """The limit that holds every ticket, whichever it is."""
        if not self.slots.are_free:
            return Limit.LOAD if self.slots.capacity < self.load.ceiling else Limit.CEILING
        return Limit.SCORING if self.unscored.is_full else None

    async def _start(self, ticket: int) -> None:
        """Claim the ticket and begin its group, unless another worker has it."""
        assert self.serving is not None
        self.tickets.next = ticket + 1
        number_try, base = self.tickets.tries.pop(ticket, 0), self.tickets.base
        owner = self.context.incarnation
        take = partial(self.folder.claims.take, ticket, owner=owner, base=base, number_try=number_try)
        if await self._taken(ticket, take):
            waits = self.waits.take()
            rollouts = min(self.slots.in_use + self.config.sampling.num_generations, self.slots.capacity)
            pace = Pace(
                concurrency=rollouts,
                concurrency_cap=self.slots.capacity,
                backpressure_seconds=waits.get(Limit.RUN_AHEAD),
                load_wait_seconds=waits.get(Limit.LOAD),
                ceiling_wait_seconds=waits.get(Limit.CEILING),
                score_block_seconds=waits.get(Limit.SCORING),
            )
            slots = self.slots.queue(self.config.sampling.num_generations)
            claimed = Claimed(
                ticket=ticket,
                number_try=number_try,
                base=base,
                prompt_number=self.tickets.rewinds.prompt_of(ticket),
                version=self.serving.version,
                pace=pace,
            )
            self.running[ticket] = asyncio.create_task(self._make_group(claimed, slots))

    async def _taken(self, ticket: int, take: Callable[[], bool]) -> bool:
        """Whether the claim is ours; False too where the run is asked to stop first.

        On a thread: the disk would hold up every rollout. Meanwhile nothing but this coroutine starts tickets or versions.
        """
        taking, began = asyncio.ensure_future(on_thread(take)), time.monotonic()
        while not (await asyncio.wait({taking}, timeout=BEAT_SECONDS))[0]:
            if self.context.stop.is_set():
                taking.cancel()
                return False
            now, limit = time.monotonic(), self.config.stop.stall_seconds
            if now - began > limit:
                raise DeadlineExceeded(
                    f"waited {now - began:.0f} s for the store to take the claim of ticket {ticket}; the limit is {limit:.0f} s "
                    "(stop.stall_seconds)"
                )
            self.folder.beat(self.context.stage, STORE_TO_CLAIM, now - self.moved_at, self._standing())
        return taking.result()

    async def _make_group(self, claimed: Claimed, slots: list[Slot]) -> None:
        await self.maker.make(claimed, slots)
        self.unscored.add(claimed.ticket)
