"""Rollouts that a run's `rollout_func` makes: it is given a group's prompt, and may ask the engine (G-212 to G-216)."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from agrpo.config import RunConfig
from agrpo.engines import Engine
from agrpo.errors import AgrpoError, HookError, PromptRefused, words_of
from agrpo.records.prompt import Message, Prompt
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.records.seeds import derive_seed
from agrpo.rewards.functions import DOCUMENTED
from agrpo.rollout_loop import LoopSettings
from agrpo.rollout_loop.finding import rollout_function
from agrpo.rollout_loop.returned import Completion, Unfit, completions_of, token_ids
from agrpo.stages.rendering import Renderer
from agrpo.stages.sampled import Sampled, sampled_of
from agrpo.stages.sampling import Unanswered, ask
from agrpo.stages.slots import Slot
from agrpo.stages.timing import timed
from agrpo.stages.vocabulary import num_tokens_of
from agrpo.tools.caller import Caller


class RolloutTrainer:
    """What a `rollout_func` is given beside the prompts: the run's settings, and its engine. One for each call."""

    def __init__(
        self, config: RunConfig, renderer: Renderer, engine: Engine, *, prompt: Prompt, ticket: int, num_tokens: int
    ) -> None:
        """Made on the engine's loop."""
        self.config = config
        """The run's settings, checked."""
        self.settings = LoopSettings(config.rollout_loop.settings)
        """Yours: the values of `[rollout_loop.settings]` as attributes."""
        self.model_name = config.model.path
        self.processing_class = renderer.tokenizer
        """The model's tokenizer, as transformers loads it."""
        self.num_generations = config.sampling.num_generations
        """Completions that are wanted for each prompt."""
        self.rows = [copy.deepcopy(prompt.facts)]
        """The other columns of each prompt's row."""
        self.asked: list[TurnRecord] = []
        """What the engine has answered."""
        self.has_returned = False
        """Whether the function has; nothing is asked afterwards."""
        self._engine = engine
        self._stop_ids = renderer.stop_ids
        self._ticket = ticket
        self._num_tokens = num_tokens
        self._num_requests = 0
        self._began = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def generate(self, prompt_ids: Sequence[Sequence[int]]) -> list[TurnRecord]:
        """One answer of the engine for each prompt, in their order, for a function written with `def`. It waits for them.

        Under the run's sampling settings, seeds and deadlines. What is raised ends the group's rollouts, or the run: let
        it pass. Raises `HookError` for what is no list of prompts in tokens.
        """
        if threading.get_ident() == self._thread:
            raise HookError(
                "trainer.generate would wait for itself; in async def, use `await trainer.generate_async(…)`"
            )
        return asyncio.run_coroutine_threadsafe(self.generate_async(prompt_ids), self._loop).result()

    async def generate_async(self, prompt_ids: Sequence[Sequence[int]]) -> list[TurnRecord]:
        """As `generate`, for a function written with `async def`."""
        if self.has_returned:
            raise HookError(
                "the trainer was asked after the function had returned; keep none from one call to the next"
            )
        requests = [self._request(place, ids) for place, ids in enumerate(prompt_ids)]
        turns = await self._answers(requests) if requests else []
        self.asked += turns
        return turns

    async def _answers(self, requests: list[CompletionRequest]) -> list[TurnRecord]:
        if self.config.sampling.reproducible:  # one batch, and no clock decides
            asked = time.monotonic()
            return [timed(turn, began=self._began, asked=asked) for turn in await self._engine.complete(requests)]
        tasks = [asyncio.ensure_future(self._answer(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, request: CompletionRequest) -> TurnRecord:
        asked = time.monotonic()
        return timed(await ask(self._engine, request), began=self._began, asked=asked)

    def _request(self, place: int, prompt_ids: Any) -> CompletionRequest:
        """The seed is that of agrpo's own rollouts, whose turns are asked in the order of the rollouts."""
        try:
            ids = token_ids(f"prompt_ids[{place}]", prompt_ids, self._num_tokens)
        except Unfit as error:
            raise HookError(f"trainer.generate: {error}") from None
        most, sampling = self.config.step.micro_tokens, self.config.sampling
        room = most - len(ids)
        if room < 1:
            raise PromptRefused(
                f"a prompt of rollout_func has {len(ids)} tokens, and no more than step.micro_tokens = {most} can be trained"
            )
        turn, index = divmod(self._num_requests, self.num_generations)
        self._num_requests += 1
        return CompletionRequest(
            prompt_ids=ids,
            seed=derive_seed(self.config.run.seed, self._ticket, index, turn),
            sampling=replace(sampling, max_completion_length=min(sampling.max_completion_length, room)),
            stop_ids=self._stop_ids,
        )


class FunctionRollouts:
    """The `rollout_func` of a run, as one generator calls it: once for each group."""

    def __init__(self, config: RunConfig, renderer: Renderer, engine: Engine, path: str) -> None:
        """Raises `HookError`."""
        self.path = path
        self._config = config
        self._renderer = renderer
        self._engine = engine
        self._function = rollout_function(path)
        self._caller = Caller(num_threads=config.asynchronous.max_concurrent_rollouts)
        self._num_tokens = num_tokens_of(config.model)

    async def sample(self, prompt: Prompt, ticket: int, version: int, slots: list[Slot]) -> list[Rollout]:
        """The group's rollouts. Raises `PromptRefused`, `HookError`, and what the engine raises."""
        with ExitStack() as held:
            for slot in slots:
                held.callback(slot.close)
            await slots[0].slots.grant_all(slots)
            loop = asyncio.get_running_loop()
            began = loop.time()
            rollouts = await self._made(prompt, ticket, version)
            return [replace(rollout, duration_seconds=loop.time() - began) for rollout in rollouts]

    async def _made(self, prompt: Prompt, ticket: int, version: int) -> list[Rollout]:
        trainer = RolloutTrainer(
            self._config, self._renderer, self._engine, prompt=prompt, ticket=ticket, num_tokens=self._num_tokens
        )
        where = f"{self.path}, ticket {ticket} (row {prompt.row_index}),"
        try:
            returned = await self._returned([copy.deepcopy(prompt.messages)], trainer, where)
        except Unanswered as error:
            return [self._failed(ticket, index, error) for index in range(trainer.num_generations)]
        finally:
            trainer.has_returned = True
        try:
            completions = completions_of(
                returned,
                num_completions=trainer.num_generations,
                num_tokens=self._num_tokens,
                taken={*DOCUMENTED, *prompt.facts},
            )
        except Unfit as error:
            raise HookError(f"{where} {error}") from None
        sampled = sampled_of(completions, trainer.asked, version)
        self._refuse_without_top(sampled, where)
        return [
            self._rollout(ticket, index, completion, own)
            for index, (completion, own) in enumerate(zip(completions, sampled, strict=True))
        ]

    async def _returned(self, prompts: list[list[Message]], trainer: RolloutTrainer, where: str) -> Any:
        """Raises `Unanswered` where the engine gave no answer that the function was waiting for."""
        seconds = self._config.rollout_loop.timeout_seconds
        outcome = await self._caller.call(
            self.path,
            partial(self._function, prompts, trainer),
            {},
            is_async=inspect.iscoroutinefunction(self._function),
            seconds=seconds,
        )
        if outcome is None:
            raise HookError(  # not `DeadlineExceeded`, after which the generator is started again, to hang again
                f"{where} did not return within {seconds:g} s (rollout_loop.timeout_seconds). Raise the limit, or give what may "
                "hang one of its own, then `agrpo resume` this run"
            )
        if outcome.error is None:
            return outcome.value
        if isinstance(outcome.error, AgrpoError | Unanswered):
            raise outcome.error
        raise HookError(
            f"{where} raised {words_of(outcome.error)}. Mend it, then `agrpo resume` this run; catch in it what is no reason to "
            "stop"
        ) from outcome.error

    def _refuse_without_top(self, sampled: list[Sampled], where: str) -> None:
        lacking = [place for place, own in enumerate(sampled) if own.top is None and own.versions]
        if self._config.loss.num_top and lacking:
            raise HookError(
                f"{where} gave logprobs[{lacking[0]}] for tokens that the run's engine has not sampled, and not the sampler's "
                "most likely tokens, which the run's loss reads; return lists of them in logprobs and logprob_token_ids, or set "
                'loss.name = "clip"'
            )

    def _rollout(self, ticket: int, index: int, completion: Completion, sampled: Sampled) -> Rollout:
        ids = completion.completion_ids
        ended = bool(ids) and ids[-1] in self._renderer.stop_ids
        turn = TurnRecord(
            prompt_ids=completion.prompt_ids,
            output_ids=ids,
            output_log_probs=completion.logprobs,
            output_sampling_mask=sampled.candidates,
            output_sampler_logprobs=sampled.top,
            output_versions=sampled.versions,
            begun_seconds=sampled.begun_seconds,
            duration_seconds=sampled.duration_seconds,
            stop_reason=StopReason.STOP if ended else StopReason.LENGTH,
        )
        return Rollout(
            completion=[{"role": "assistant", "content": self._renderer.text(ids)}],
            completion_ids=ids,
            turns=[turn],
            stop_reason=turn.stop_reason,
            columns=completion.columns,
            **self._place(ticket, index),
        )

    def _failed(self, ticket: int, index: int, error: Unanswered) -> Rollout:
        return Rollout(
            completion=[],
            completion_ids=[],
            turns=[],
            stop_reason=error.why,
            error=str(error),
            **self._place(ticket, index),
        )

    def _place(self, ticket: int, index: int) -> dict[str, Any]:
        seed = derive_seed(self._config.run.seed, ticket, index, 0)
        return {"index": index, "seed": seed, "rollout_id": f"{seed:016x}"}
