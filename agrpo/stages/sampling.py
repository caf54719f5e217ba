"""Sampling a group: from a prompt to its rollouts, in tokens. Text exists only at the ends of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from agrpo.engines import Engine
from agrpo.errors import EngineError, EngineLost, PromptRefused, StaleInFlight
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.stages.conversation import Calling, Conversation, Opening, answer_all
from agrpo.stages.rendering import Renderer
from agrpo.stages.slots import Slot


class Unanswered(Exception):
    """A request that the engine gave no answer to."""

    def __init__(self, why: StopReason, error: str) -> None:
        super().__init__(error)
        self.why = why


async def sample_group(
    engine: Engine,
    renderer: Renderer,
    opening: Opening,
    *,
    slots: list[Slot],
    calling: Calling | None = None,
) -> list[Rollout]:
    """The rollouts of a rendered prompt, one for each slot. Raises `PromptRefused`, `EngineLost` or `ToolError`.

    A rollout that fails is a fact with its reason. Where requests must repeat bit for bit, the turns of all rollouts are
    one batch a round, and no clock decides: a failure is raised.
    """
    talks = [Conversation(renderer, opening, index, calling) for index in range(opening.sampling.num_generations)]
    if opening.sampling.reproducible:
        return await _sample_in_rounds(engine, talks, slots)
    tasks = [
        asyncio.ensure_future(_sample_in_slot(engine, talk, slot)) for talk, slot in zip(talks, slots, strict=True)
    ]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _sample_in_rounds(engine: Engine, talks: list[Conversation], slots: list[Slot]) -> list[Rollout]:
    for talk in talks:
        talk.begin()
    async with AsyncExitStack() as held:
        for slot in slots:
            await held.enter_async_context(slot)
        going_on = talks
        while going_on:
            await _round(engine, going_on)
            calling = [talk for talk in going_on if not talk.is_over]
            await answer_all(calling)
            going_on = [talk for talk in calling if not talk.is_over]
    return [talk.rollout() for talk in talks]


async def _round(engine: Engine, talks: list[Conversation]) -> None:
    """One turn of each, as one batch; each by itself where one has become too long for the engine."""
    try:
        turns = await engine.complete([talk.request() for talk in talks])
    except PromptRefused:
        if talks[0].num_turns == 0:
            raise
        for talk in talks:
            await _round_of_one(engine, talk)
        return
    for talk, turn in zip(talks, turns, strict=True):
        talk.take(turn)


async def _round_of_one(engine: Engine, talk: Conversation) -> None:
    try:
        (turn,) = await engine.complete([talk.request()])
    except PromptRefused:
        talk.end_for_length()
        return
    talk.take(turn)


async def _sample_in_slot(engine: Engine, talk: Conversation, slot: Slot) -> Rollout:
    async with slot:
        return await converse(talk, partial(ask, engine))


async def converse(talk: Conversation, ask_turn: Callable[[CompletionRequest], Awaitable[TurnRecord]]) -> Rollout:
    """One rollout, from its first turn to its last."""
    talk.begin()
    while not talk.is_over:
        try:
            talk.take(await ask_turn(talk.request()))
        except PromptRefused:
            if talk.num_turns == 0:
                raise
            talk.end_for_length()
        except Unanswered as error:
            return talk.failed(error.why, str(error))
        if not talk.is_over:
            await talk.answer_calls()
    return talk.rollout()


async def ask(engine: Engine, request: CompletionRequest) -> TurnRecord:
    """One turn; a request without an answer is asked twice, by the engine itself where that keeps deadlines.

    Raises `Unanswered`, `PromptRefused` or `EngineLost`.
    """
    limit = request.sampling.request_timeout_seconds
    for _ in range(1 if engine.keeps_deadlines else 2):
        try:
            async with asyncio.timeout(None if engine.keeps_deadlines else limit):
                turns = await engine.complete([request])
        except TimeoutError:
            continue
        except (PromptRefused, EngineLost):
            raise
        except EngineError as error:
            why = StopReason.STALE_IN_FLIGHT if isinstance(error, StaleInFlight) else StopReason.ENGINE_ERROR
            raise Unanswered(why, str(error)) from None
        if len(turns) != 1:
            reason = f"asked for one completion, the engine returned {len(turns)}"
            raise Unanswered(StopReason.ENGINE_ERROR, reason)
        return turns[0]
    raise Unanswered(StopReason.TIMEOUT, f"no answer twice within {limit:g} s (engine.request_timeout_seconds)")
