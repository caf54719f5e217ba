"""Sampling a group: from a prompt to its rollouts, in tokens. Text exists only at the two ends."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from jinja2 import TemplateError

from agrpo.config import ModelSection
from agrpo.engines import Engine
from agrpo.errors import EngineError, EngineLost, ModelError, PromptError, PromptRefused, StaleInFlight
from agrpo.records.prompt import Message
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest, Sampling
from agrpo.records.seeds import derive_seed
from agrpo.stages.slots import Slot


class Renderer:
    """A model's tokenizer and chat template: messages to tokens, tokens to text."""

    def __init__(self, model: ModelSection) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                model.path, revision=model.revision, trust_remote_code=model.trust_remote_code
            )
        except (OSError, ValueError) as error:
            raise ModelError(f"no tokenizer in {model.path}: {str(error).splitlines()[0]}") from None
        if self._tokenizer.chat_template is None:
            raise ModelError(
                f"the tokenizer of {model.path} has no chat template, so messages cannot be rendered; "
                "use an instruct model, or save a chat template with the tokenizer"
            )
        self._keywords = model.chat_template_kwargs
        self.stop_ids = frozenset(_stop_ids(model, self._tokenizer))

    def render(self, messages: list[Message]) -> list[int]:
        """Prompt tokens, ending where the model is to answer. Raises `PromptError` for what the template cannot take."""
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self._keywords
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise PromptError(f"the model's chat template cannot render this prompt: {error}") from None
        return [int(token) for token in rendered]

    def text(self, ids: list[int]) -> str:
        """What the model wrote, without the token that ended it."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self._tokenizer.decode(kept, skip_special_tokens=False)


def _stop_ids(model: ModelSection, tokenizer: Any) -> set[int]:
    """The generation config's end tokens and the tokenizer's."""
    from transformers import GenerationConfig

    config: Any = GenerationConfig
    try:
        declared = config.from_pretrained(model.path, revision=model.revision).eos_token_id
    except OSError:
        declared = None
    ids = set(declared if isinstance(declared, list) else [] if declared is None else [declared])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if not ids:
        raise ModelError(f"{model.path} names no end-of-turn token in its generation config or tokenizer")
    return ids


async def sample_group(
    engine: Engine,
    renderer: Renderer,
    prompt_ids: list[int],
    *,
    sampling: Sampling,
    seeds: tuple[int, int],
    slots: list[Slot],
) -> list[Rollout]:
    """The rollouts of a rendered prompt, one for each slot. `seeds`: (run seed, ticket).

    Raises `PromptRefused`, or `EngineLost`.

    A rollout that fails is a fact with its reason. Where requests must repeat bit for bit they are one batch, and no
    clock decides: a failure is raised.
    """
    requests = [
        CompletionRequest(
            prompt_ids=prompt_ids,
            seed=derive_seed(*seeds, index, 0),
            sampling=sampling,
            stop_ids=renderer.stop_ids,
        )
        for index in range(sampling.num_generations)
    ]
    began = time.monotonic()
    if sampling.reproducible:
        async with AsyncExitStack() as held:
            for slot in slots:
                await held.enter_async_context(slot)
            turns = await engine.complete(requests)
        return [
            _rollout(renderer, index, request, turn, time.monotonic() - began)
            for index, (request, turn) in enumerate(zip(requests, turns, strict=True))
        ]
    tasks = [
        asyncio.ensure_future(_sample_in_slot(engine, renderer, index, request, slot))
        for index, (request, slot) in enumerate(zip(requests, slots, strict=True))
    ]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _sample_in_slot(
    engine: Engine, renderer: Renderer, index: int, request: CompletionRequest, slot: Slot
) -> Rollout:
    async with slot:
        return await _sample_one(engine, renderer, index, request)


async def _sample_one(engine: Engine, renderer: Renderer, index: int, request: CompletionRequest) -> Rollout:
    """One rollout; a request without an answer is asked twice, by the engine itself where that keeps deadlines."""
    began = time.monotonic()
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
            return _failed(index, request, why, str(error), time.monotonic() - began)
        if len(turns) != 1:
            reason = f"asked for one completion, the engine returned {len(turns)}"
            return _failed(index, request, StopReason.ENGINE_ERROR, reason, time.monotonic() - began)
        return _rollout(renderer, index, request, turns[0], time.monotonic() - began)
    reason = f"no answer twice within {limit:g} s (engine.request_timeout_seconds)"
    return _failed(index, request, StopReason.TIMEOUT, reason, time.monotonic() - began)


def _rollout(renderer: Renderer, index: int, request: CompletionRequest, turn: TurnRecord, seconds: float) -> Rollout:
    return Rollout(
        completion=[{"role": "assistant", "content": renderer.text(turn.output_ids)}],
        completion_ids=turn.output_ids,
        turns=[turn],
        rollout_id=f"{request.seed:016x}",
        index=index,
        seed=request.seed,
        stop_reason=turn.stop_reason,
        duration_seconds=seconds,
    )


def _failed(index: int, request: CompletionRequest, why: StopReason, error: str, seconds: float) -> Rollout:
    return Rollout(
        completion=[],
        completion_ids=[],
        turns=[],
        rollout_id=f"{request.seed:016x}",
        index=index,
        seed=request.seed,
        stop_reason=why,
        error=error,
        duration_seconds=seconds,
    )
