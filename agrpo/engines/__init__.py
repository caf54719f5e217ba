"""Engines: what turns a prompt in tokens into a completion in tokens, under the newest weights.

An engine part holds an engine's knobs; calling it starts the engine in this process. `reproducible` calls must be
answered bit for bit alike whatever else runs, so each such call is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from agrpo.config import ModelSection
from agrpo.records.pressure import Pressure
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import CompletionRequest, Sampling
from agrpo.registry import Registry

Servers = Callable[[], Sequence[str]]
"""URLs of the servers that the run keeps for its engine, as they are now; none yet where they are still to begin."""


def no_servers() -> Sequence[str]:
    """A run that keeps none."""
    return ()


def no_version(label: str) -> int | None:
    """A run that has published none."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run needs of its engine beside the model."""

    servers: Servers = no_servers
    version_of: Callable[[str], int | None] = no_version
    """The version that a server's label, `{version}@{name of its folder}`, stands for in this run. None: it is not of this run."""
    give_up: Callable[[str], None] | None = None
    """Has the run start its server at a URL again. None: it keeps none."""
    sampling: Sampling = field(default_factory=Sampling)
    max_staleness: int = 0
    adapter_rank: int | None = None
    """Of the adapter in which versions are published. None: they are whole weights."""


class Engine(Protocol):
    """A running engine. All methods run on one asyncio loop."""

    keeps_deadlines: ClassVar[bool]
    """Whether `complete` itself ends a request that has no answer within its time. Else its caller does."""

    @property
    def dtype(self) -> str:
        """Type in which the weights are served: `float32`, `bfloat16` or `float16`."""
        ...

    @property
    def behind(self) -> bool:
        """Whether a server has lost the version that was loaded last, as one that was started again: load it again."""
        ...

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        """One turn per request, in order, as sampled: ids, log-probs, versions, stop reason.

        Raises `PromptRefused` for a prompt it can never take, `DeadlineExceeded` where it keeps deadlines and one has
        passed, `EngineLost` where no server has been there for too long, else `EngineError`.
        """
        ...

    async def load(self, folder: Path, version: int) -> None:
        """Serve the weights in `folder` (`model.safetensors`) as `version`. Tokens sampled later carry it."""
        ...

    async def next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[list[float]]:
        """Log-probs (temperature 1, full vocabulary) of the ids `of` after `token_ids`, under the loaded weights.

        One list for each server that serves them now; one alone for an engine in this process. None at all: every server
        went away meanwhile, and has to be given the weights again. An id that a server gives no log-prob of, because it is
        not among the most likely, is given that of the least likely of those instead: it has that much at most.
        """
        ...

    async def pressure(self) -> Pressure | None:
        """How full its servers are. None: it has none."""
        ...

    async def close(self) -> None: ...


class EnginePart(Protocol):
    """An engine's knobs."""

    can_reproduce: ClassVar[bool]
    """Whether the engine keeps the promise of `Sampling.reproducible`."""
    needs_head: ClassVar[bool]
    """Whether it must be told the output head of a model that ties it to its embedding (`tied.safetensors`)."""
    takes_adapters: ClassVar[bool]
    """Whether it serves an adapter beside the weights that it began with."""

    def __call__(self, model: ModelSection, needs: Needs | None = None) -> Engine:
        """Start the engine for this model. Raises `ModelError` or `EngineError`. `needs`: None is what `Needs()` says."""
        ...


engines: Registry[EnginePart] = Registry("agrpo.engines")

__all__ = ["Engine", "EnginePart", "Needs", "Servers", "engines", "no_servers", "no_version"]
