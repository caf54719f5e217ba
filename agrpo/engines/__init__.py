"""Engines: what turns a prompt in tokens into a completion in tokens, under the newest weights.

An engine part holds an engine's knobs; calling it starts the engine in this process. `reproducible` calls must be
answered bit for bit alike whatever else runs, so each such call is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from agrpo.config import ModelSection
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.registry import Registry


class Engine(Protocol):
    """A running engine. All methods run on one asyncio loop."""

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        """One turn per request, in order, as sampled: ids, log-probs, versions, stop reason.

        Raises `PromptRefused` for a prompt it can never take, else `EngineError`.
        """
        ...

    async def load(self, folder: Path, version: int) -> None:
        """Serve the weights in `folder` (`model.safetensors`) as `version`. Tokens sampled later carry it."""
        ...

    async def next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[float]:
        """Log-probs (temperature 1, full vocabulary) of the ids `of` after `token_ids`, under the loaded weights."""
        ...

    async def close(self) -> None: ...


class EnginePart(Protocol):
    """An engine's knobs."""

    can_reproduce: ClassVar[bool]
    """Whether the engine keeps the promise of `Sampling.reproducible`."""

    def __call__(self, model: ModelSection) -> Engine:
        """Start the engine for this model. Raises `ModelError` or `EngineError`."""
        ...


engines: Registry[EnginePart] = Registry("agrpo.engines")

__all__ = ["Engine", "EnginePart", "engines"]
