"""The engine as asyncio sees it: every method awaits the decoding thread without blocking the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch

from agrpo.config import ModelSection
from agrpo.engines.decoding.calls import Call
from agrpo.engines.decoding.model import NOT_LOADED, Model, load_model
from agrpo.engines.decoding.worker import Worker
from agrpo.errors import DeadlineExceeded, EngineError, PromptRefused
from agrpo.records.pressure import Pressure
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import CompletionRequest

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 30.0
"""Longest wait for the step that is running when the engine is closed."""


def start(section: ModelSection, *, threads: int, batch_rollouts: int) -> DecodingEngine:
    """An engine for this model, without weights. Raises `ModelError`."""
    model = load_model(section)
    logger.info(
        "%s: %d parameters, %s, %d torch threads", section.path, model.num_parameters, section.served_dtype, threads
    )
    return DecodingEngine(model, Worker(model, threads=threads, batch_rollouts=batch_rollouts))


class DecodingEngine:
    """An `Engine`."""

    keeps_deadlines: ClassVar[bool] = False
    behind = False

    def __init__(self, model: Model, worker: Worker) -> None:
        self.dtype = model.dtype
        self._model = model
        self._worker = worker

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        if not requests:
            return []
        call = Call(requests, [self._most_tokens(request) for request in requests])
        self._worker.submit(call)
        return await asyncio.wrap_future(call.future)

    async def load(self, folder: Path, version: int) -> None:
        await asyncio.wrap_future(self._worker.between_steps(lambda: self._model.load(folder, version)))
        logger.info("version %d loaded from %s", version, folder)

    async def next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[list[float]]:
        self._check_ids([*token_ids, *of])
        ask = self._worker.between_steps(lambda: self._next_token_logprobs(token_ids, of))
        return [await asyncio.wrap_future(ask)]

    async def pressure(self) -> Pressure | None:
        return None

    async def close(self) -> None:
        """Raises `DeadlineExceeded` where the running step does not end."""
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._worker.close())), CLOSE_SECONDS)
        except TimeoutError:
            raise DeadlineExceeded(f"waited {CLOSE_SECONDS:.0f} s for the engine's last decode step to end") from None

    def _next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[float]:
        if self._model.version == NOT_LOADED:
            raise EngineError("no weights were loaded yet; load a version before asking for log-probs")
        ids = torch.tensor([list(token_ids)])
        logits = self._model.next_logits(ids, torch.ones_like(ids), torch.arange(len(token_ids)).unsqueeze(0))
        return logits[0].float().log_softmax(-1)[list(of)].tolist()

    def _most_tokens(self, request: CompletionRequest) -> int:
        """What `max_completion_length` and the model's positions leave for the completion. Raises `PromptRefused`."""
        self._check_ids(request.prompt_ids)
        length, limit = len(request.prompt_ids), self._model.max_positions
        if length == 0:
            raise PromptRefused("a prompt of 0 tokens; a model needs at least one token to continue")
        if limit is not None and length >= limit:
            raise PromptRefused(
                f"a prompt of {length} tokens leaves no room for a completion: the model's max_position_embeddings is {limit}; "
                "shorten or drop the prompt"
            )
        most = request.sampling.max_completion_length
        return most if limit is None else min(most, limit - length)

    def _check_ids(self, ids: Sequence[int]) -> None:
        known = range(self._model.vocabulary)
        unknown = [token for token in ids if token not in known]
        if unknown:
            raise EngineError(
                f"token id {unknown[0]} is none of this model's {len(known)}; were the ids made by the model's own tokenizer?"
            )
