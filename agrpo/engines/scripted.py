"""Completions without a model, for tests and dry runs: a pure function of prompt and seed."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs
from agrpo.errors import EngineError
from agrpo.records.pressure import Pressure
from agrpo.records.rollout import StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.registry import part

BEYOND_TOLD = 5
"""Ids that a refusal names."""

Id = Annotated[int, Field(ge=0)]


@part
class Scripted:
    """Plays a policy that finds every token equally likely, whatever weights it is told to load.

    So it agrees with no real learner: a probe of its log-probs holds only where the learner's policy is uniform too.
    """

    vocab_size: Annotated[int, Field(ge=2)] = 320
    """Ids are drawn from 0 up to this."""
    stop_id: Annotated[int, Field(ge=0)] | None = None
    """Ends a completion. None: the lowest of the request's stop ids. Where the request does not stop at it, the
    completion goes on to `max_completion_length`; one of `completions` ends with it all the same."""
    length: Annotated[int, Field(ge=1)] = 8
    """Tokens of a completion, the stop token included."""
    completions: list[Annotated[list[Id], Field(min_length=1)]] = field(default_factory=list[list[int]])
    """Whole completions in token ids below `vocab_size`, without the stop token; the seed picks one, and `length` is not
    heeded. Those of tool calls make a policy that calls tools. Empty: every token is drawn."""
    delay_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Between a call and its answer. The tokens carry the version loaded at the end of it."""

    @field_validator("completions")
    @classmethod
    def _within_vocabulary(cls, value: list[list[int]], info: ValidationInfo) -> list[list[int]]:
        size = info.data.get("vocab_size")  # absent where it is refused itself
        beyond = sorted({token for completion in value for token in completion if size is not None and token >= size})
        if beyond:
            raise ValueError(
                f"the ids {', '.join(map(str, beyond[:BEYOND_TOLD]))} are not below vocab_size = {size}; set vocab_size to the "
                "number of the model's tokens"
            )
        return value

    can_reproduce: ClassVar[bool] = True
    needs_head: ClassVar[bool] = False
    takes_adapters: ClassVar[bool] = False

    def __call__(self, model: ModelSection, needs: Needs | None = None) -> Engine:
        return _ScriptedEngine(self)


class _ScriptedEngine:
    keeps_deadlines: ClassVar[bool] = False
    dtype = "float32"
    behind = False

    def __init__(self, script: Scripted) -> None:
        self._script = script
        self._version: int | None = None
        self._closed = False

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        if not requests:
            return []
        self._loaded_version()
        await asyncio.sleep(self._script.delay_seconds)
        version = self._loaded_version()
        return [_turn(self._script, request, version) for request in requests]

    async def load(self, folder: Path, version: int) -> None:
        """Only the version is looked at."""
        self._check_open()
        self._version = version

    async def next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[list[float]]:
        self._loaded_version()
        return [[-math.log(self._script.vocab_size)] * len(of)]

    async def pressure(self) -> Pressure | None:
        return None

    async def close(self) -> None:
        self._closed = True

    def _loaded_version(self) -> int:
        self._check_open()
        if self._version is None:
            raise EngineError("no weights were loaded yet; load a version before asking for completions")
        return self._version

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")


def _turn(script: Scripted, request: CompletionRequest, version: int) -> TurnRecord:
    if not request.prompt_ids:
        raise EngineError("a prompt of 0 tokens; a model needs at least one token to continue")
    ids = _completion(script, request)
    sampling, vocabulary = request.sampling, script.vocab_size
    num_kept = math.ceil(sampling.top_p * min(sampling.top_k or vocabulary, vocabulary))
    num_top = min(sampling.num_sampler_logprobs, num_kept)
    logprob = -math.log(num_kept)
    return TurnRecord(
        prompt_ids=list(request.prompt_ids),
        output_ids=ids,
        output_log_probs=[logprob] * len(ids),
        output_sampling_mask=[_around(token, num_kept, vocabulary) for token in ids] if sampling.truncated else None,
        output_sampler_logprobs=(
            [dict.fromkeys(_around(token, num_top, vocabulary), logprob) for token in ids] if num_top else None
        ),
        output_versions=[version] * len(ids),
        stop_reason=StopReason.STOP if ids[-1] in request.stop_ids else StopReason.LENGTH,
    )


def _around(token: int, count: int, vocabulary: int) -> list[int]:
    """As many of the equally likely ids, ascending, this one among them."""
    return sorted([token, *((token + step) % vocabulary for step in range(1, count))])


def _completion(script: Scripted, request: CompletionRequest) -> list[int]:
    most = request.sampling.max_completion_length
    stop_id = min(request.stop_ids, default=None) if script.stop_id is None else script.stop_id
    if script.completions:
        return [*script.completions[request.seed % len(script.completions)], *([] if stop_id is None else [stop_id])][
            :most
        ]
    if stop_id is None or stop_id not in request.stop_ids:
        return _drawn_ids(script, request, most)
    return [*_drawn_ids(script, request, script.length - 1), stop_id][:most]


def _drawn_ids(script: Scripted, request: CompletionRequest, count: int) -> list[int]:
    """Ids that end nothing."""
    told = ",".join(map(str, [request.seed, *request.prompt_ids])).encode()
    going_on = [token for token in range(script.vocab_size) if token not in request.stop_ids]
    digests = (
        hashlib.blake2b(told, digest_size=8, salt=place.to_bytes(8, "little")).digest() for place in range(count)
    )
    return [going_on[int.from_bytes(digest, "little") % len(going_on)] for digest in digests]
