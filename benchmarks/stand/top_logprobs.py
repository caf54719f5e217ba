"""What it costs to be told the likeliest tokens beside the sampled one, of any engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agrpo.engines import Engine
from agrpo.records.sampling import CompletionRequest, Sampling

TOP = 8
IDS = range(100, 40_000)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a step's rollouts."""

    groups: int
    num_generations: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def trained(self) -> int:
        """Tokens of a step, where every completion is as long as it may be."""
        return self.groups * self.num_generations * self.completion_tokens


async def seconds_by_count(engine: Engine, shape: Shape, rounds: int) -> dict[int, list[float]]:
    """Seconds a token, with 0 and with `TOP` log-probs in turn, after a turn that does not count."""
    found: dict[int, list[float]] = {0: [], TOP: []}
    for number in range(1 + rounds):
        for count, seconds in found.items():
            took = await _sampled(engine, groups_of(shape, count))
            if number:
                seconds.append(took)
    return found


def groups_of(shape: Shape, count: int) -> list[list[CompletionRequest]]:
    """Requests for completions of full length, of prompts that mean nothing."""
    draw = random.Random(0)
    sampling = Sampling(max_completion_length=shape.completion_tokens, num_sampler_logprobs=count)
    prompts = [draw.choices(IDS, k=shape.prompt_tokens) for _ in range(shape.groups)]
    return [
        [
            CompletionRequest(prompt_ids=ids, seed=draw.getrandbits(60), sampling=sampling, stop_ids=frozenset())
            for _ in range(shape.num_generations)
        ]
        for ids in prompts
    ]


async def _sampled(engine: Engine, groups: Sequence[Sequence[CompletionRequest]]) -> float:
    """Seconds for each token that came back."""
    began = time.perf_counter()
    answers = await asyncio.gather(*[engine.complete(requests) for requests in groups])
    took = time.perf_counter() - began
    return took / sum(len(turn.output_ids) for turns in answers for turn in turns)
