"""The run's rollout loop as a generator drives it: its set-up and its end, its filter, its rollouts.

A loop that overrides neither `generate_one` nor `generate_one_turn` leaves sampling as it is, bit for bit.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from agrpo.config import RunConfig
from agrpo.coroutines import is_being_cancelled
from agrpo.engines import Engine
from agrpo.errors import AgrpoError, DeadlineExceeded, HookError, PromptRefused, words_of
from agrpo.prompts import PromptOrder
from agrpo.records.prompt import Message, Prompt
from agrpo.records.rollout import Rollout, StopReason
from agrpo.rollout_loop.finding import build_loop, overrides
from agrpo.rollout_loop.under_way import UNDER_WAY
from agrpo.stages.conversation import Conversation
from agrpo.stages.function_rollouts import FunctionRollouts
from agrpo.stages.own_rollout import OwnRollout, Place
from agrpo.stages.rendering import Renderer
from agrpo.stages.sampling import Unanswered, sample_group
from agrpo.stages.slots import Slot
from agrpo.stages.surroundings import Surroundings
from agrpo.stages.vocabulary import num_tokens_of
from agrpo.tools import load_tools

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
BEAT_SECONDS = 1.0

ENDING = (SystemExit, KeyboardInterrupt, asyncio.CancelledError)
"""What would end a task or the process, where a hook may have raised it itself."""

Beat = Callable[[str, float], None]
"""Hears what is waited for, and for how many seconds."""


class RolloutHooks:
    """The hooks of one generator."""

    def __init__(self, config: RunConfig, renderer: Renderer, engine: Engine) -> None:
        """Raises `HookError`, `ToolError` or `EnvironmentFault` for what cannot be built."""
        self._config = config
        self._renderer = renderer
        self._engine = engine
        self._surroundings = Surroundings(config, renderer)
        self._loop = build_loop(config, renderer.tokenizer)
        self._tools = [tool.function for tool in load_tools(config.tools).values()]
        path = config.rollout_loop.rollout_func
        self._num_tokens = num_tokens_of(config.model) if self._samples else 0
        self._function = None if path is None else FunctionRollouts(config, renderer, engine, path)

    def who_answers(self, ticket: int) -> str:
        """What a group that is being made is waited for: a tool or an environment that has not come back, or who asks."""
        if (call := self._surroundings.caller.longest(ticket)) is not None:
            return f"{call.name}, called {call.seconds:.0f} s ago,"
        if self._function is not None:
            return self._function.path
        return self._named("generate_one") if self._samples else "the engine"

    @property
    def _samples(self) -> bool:
        return self._has("generate_one") or self._has("generate_one_turn")

    @asynccontextmanager
    async def in_use(self, stop: threading.Event, beat: Beat) -> AsyncGenerator[None]:
        """Between the loop's `setup` and its `close`. Where the run fails, what `close` raises is only logged."""
        try:
            if self._has("setup"):
                await self._finish("setup", self._loop.setup(), self._config.stop.stall_seconds, stop=stop, beat=beat)
            yield
        except BaseException:
            try:
                await self._close()
            except (HookError, DeadlineExceeded) as error:
                logger.error("%s", error)
            raise
        await self._close()

    def leaves_out(self, order: PromptOrder, number: int, prompt: Prompt) -> str | None:
        """Why this prompt is not asked. None: it is."""
        if not self._has("filter_prompt"):
            return None
        try:
            kept: Any = self._loop.filter_prompt(prompt.row_index, dict(order.row(number)), prompt.epoch)
        except (Exception, *ENDING) as error:
            raise self._failed("filter_prompt", f"row {prompt.row_index} in epoch {prompt.epoch}", error) from error
        if not isinstance(kept, bool | np.bool_):
            raise HookError(
                f"{self._named('filter_prompt')}, row {prompt.row_index}, gave {kept!r}; expected True or False"
            )
        return (
            None
            if kept
            else f"{self._named('filter_prompt')} leaves row {prompt.row_index} out in epoch {prompt.epoch}"
        )

    async def sample(self, prompt: Prompt, ticket: int, version: int, slots: list[Slot]) -> list[Rollout]:
        """The prompt's rollouts, one for each slot. Raises `PromptError`, `PromptRefused`, and as `sample_group`."""
        if self._function is not None:
            return await self._function.sample(prompt, ticket, version, slots)
        if not self._samples:
            opening = self._surroundings.opening(prompt, ticket)
            return await sample_group(self._engine, self._renderer, opening, slots=slots)
        opening_once = cache(partial(self._surroundings.opening, prompt, ticket))

        def begin(index: int, messages: list[Message]) -> Conversation:
            opening = opening_once()
            asks_other = messages != prompt.messages
            return Conversation(
                self._renderer, self._surroundings.asking(opening, messages) if asks_other else opening, index
            )

        tasks = [
            asyncio.ensure_future(
                self._in_slot(
                    prompt, Place(ticket=ticket, index=index, row_index=prompt.row_index, version=version), slot, begin
                )
            )
            for index, slot in enumerate(slots)
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_slot(
        self, prompt: Prompt, place: Place, slot: Slot, begin: Callable[[int, list[Message]], Conversation]
    ) -> Rollout:
        async with slot:
            stop_ids = self._renderer.stop_ids
            begin_own = partial(begin, place.index)
            own = OwnRollout(
                self._config,
                self._engine,
                stop_ids,
                place,
                begin=begin_own,
                tools=self._tools,
                num_tokens=self._num_tokens,
            )
            UNDER_WAY.set(own)  # of this task alone
            try:
                messages = copy.deepcopy(prompt.messages)
                return own.checked(await self._loop.generate_one(messages, list(self._tools), place.ticket))
            except Unanswered as error:
                return own.failed(error.why, str(error))
            except PromptRefused as error:
                if own.num_turns <= 1:
                    raise
                return own.failed(StopReason.ENGINE_ERROR, str(error))
            except AgrpoError:
                raise
            except (Exception, *ENDING) as error:
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                raise self._failed("generate_one", str(place), error) from error

    async def _close(self) -> None:
        if self._has("close"):
            await self._finish("close", self._loop.close(), self._config.stop.grace_seconds)

    async def _finish(
        self,
        hook: str,
        work: Awaitable[None],
        limit_seconds: float,
        *,
        stop: threading.Event | None = None,
        beat: Beat = lambda *_: None,
    ) -> None:
        """Wait for it, until its deadline or until the run is asked to stop."""
        task, began, told = asyncio.ensure_future(self._come_to_an_end(hook, work)), time.monotonic(), 0.0
        try:
            while not (await asyncio.wait({task}, timeout=POLL_SECONDS))[0]:
                now = time.monotonic()
                if stop is not None and stop.is_set():
                    return
                if now - began > limit_seconds:
                    setting = "stop.grace_seconds" if hook == "close" else "stop.stall_seconds"
                    raise DeadlineExceeded(
                        f"waited {now - began:.0f} s for {self._named(hook)}; the limit is {limit_seconds:.0f} s ({setting})"
                    )
                if now - told >= BEAT_SECONDS:
                    told = now
                    beat(self._named(hook), now - began)
        finally:
            task.cancel()
        task.result()

    async def _come_to_an_end(self, hook: str, work: Awaitable[None]) -> None:
        """Where it does, with what it raised as a failure of the hook."""
        try:
            await work
        except AgrpoError:
            raise
        except (Exception, *ENDING) as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            raise self._failed(hook, None, error) from error

    def _has(self, hook: str) -> bool:
        return overrides(type(self._loop), hook)

    def _named(self, hook: str) -> str:
        return f"{self._config.rollout_loop.path}: {hook}"

    def _failed(self, hook: str, where: str | None, error: Any) -> HookError:
        about = self._named(hook) if where is None else f"{self._named(hook)}, {where},"
        return HookError(
            f"{about} raised {words_of(error)}. Mend the hook, then `agrpo resume` this run; catch in it what is "
            "no reason to stop"
        )
