"""Sampling a group: from a prompt to its rollouts, in tokens. Text exists only at the ends of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from agrpo.engines import Engine
from agrpo.errors import AgrpoError, EngineError, EngineLost, EnvironmentFault, PromptRefused, StaleInFlight
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.stages.conversation import Conversation, Opening, side_by_side
from agrpo.stages.rendering import Renderer
from agrpo.stages.slots import Slot


class Unanswered(Exception):
    """A request that the engine gave no answer to."""

    def __init__(self, why: StopReason, error: str) -> None:
        super().__init__(error)
        self.why = why


async def sample_group(engine: Engine, renderer: Renderer, opening: Opening, *, slots: list[Slot]) -> list[Rollout]:
    """The rollouts of a prompt, one for each slot. Raises `PromptRefused`, `EngineLost`, `ToolError` or `EnvironmentFault`.

    A rollout that fails is a fact with its reason. Where requests must repeat bit for bit, the turns of all rollouts are
    one batch a round, and no clock decides: a failure of the engine is raised.
    """
    talks = [Conversation(renderer, opening, index) for index in range(opening.sampling.num_generations)]
    try:
        if opening.sampling.reproducible:
            await _sample_in_rounds(engine, talks, slots)
        else:
            await side_by_side(_sample_in_slot(engine, talk, slot) for talk, slot in zip(talks, slots, strict=True))
    finally:
        for talk in talks:
            talk.abandon()
    return [talk.rollout() for talk in talks]


def all_failed(num_groups: int, last: Rollout) -> AgrpoError:
    """What to say where no rollout of as many groups in a row has come back."""
    if last.stop_reason is StopReason.ENVIRONMENT_ERROR:
        return EnvironmentFault(
            f"no rollout of {num_groups} groups in a row came to its first turn, last: {last.error}; mend the environment, then "
            "`agrpo resume` this run"
        )
    return EngineError(
        f"the engine answered no request of {num_groups} groups in a row, last: {last.error}; the prompts are not to blame. "
        "Mend the engine, then `agrpo resume` this run"
    )


async def _sample_in_rounds(engine: Engine, talks: list[Conversation], slots: list[Slot]) -> None:
    async with AsyncExitStack() as held:
        for slot in slots:
            await held.enter_async_context(slot)
        await side_by_side(talk.begin() for talk in talks)
        going_on = [talk for talk in talks if not talk.is_over]
        while going_on:
            await _round(engine, going_on)
            calling = [talk for talk in going_on if not talk.is_over]
            await side_by_side(talk.answer_calls() for talk in calling)
            going_on = [talk for talk in calling if not talk.is_over]
        await side_by_side(talk.end() for talk in talks)


async def _round(engine: Engine, talks: list[Conversation]) -> None:
    """One turn of each, as one batch; each by itself where one has become too long for the engine."""
    try:
        turns = await engine.complete([talk.request() for talk in talks])
    except PromptRefused:
        if _are_alike(talks):
            raise
        for talk in talks:
            await _round_of_one(engine, talk)
        return
    for talk, turn in zip(talks, turns, strict=True):
        talk.take(turn)


async def _round_of_one(engine: Engine, talk: Conversation) -> None:
    try:
        (turn,) = await engine.complete([talk.request()])
    except PromptRefused as error:
        _end_refused(talk, error)
        return
    talk.take(turn)


def _are_alike(talks: list[Conversation]) -> bool:
    """Whether the engine refuses what all of them are asked."""
    return talks[0].num_turns == 0 and not any(talk.chose_its_prompt for talk in talks)


def _end_refused(talk: Conversation, error: PromptRefused) -> None:
    """A prompt that the engine cannot take ends the rollout that has grown into it, or whose environment asks it."""
    if talk.num_turns > 0:
        talk.end_for_length()
    else:
        talk.fail(StopReason.ENVIRONMENT_ERROR, f"the engine cannot take what reset asks: {error}")


async def _sample_in_slot(engine: Engine, talk: Conversation, slot: Slot) -> None:
    async with slot:
        await converse(talk, partial(ask, engine))


async def converse(talk: Conversation, ask_turn: Callable[[CompletionRequest], Awaitable[TurnRecord]]) -> Rollout:
    """One rollout, from its first turn to its last, its environment's reward included."""
    await talk.begin()
    while not talk.is_over:
        await _take_turn(talk, ask_turn)
        if not talk.is_over:
            await talk.answer_calls()
    await talk.end()
    return talk.rollout()


async def _take_turn(talk: Conversation, ask_turn: Callable[[CompletionRequest], Awaitable[TurnRecord]]) -> None:
    try:
        talk.take(await ask_turn(talk.request()))
    except PromptRefused as error:
        if _are_alike([talk]):
            raise
        _end_refused(talk, error)
    except Unanswered as error:
        talk.fail(error.why, str(error))


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
