"""Forward and backward of the same samples, laid out in several ways: a prefix trie, whole samples, a padded batch.

All ways read the head at the same positions and share loss and aggregation, so what is compared is the rows alone. Every
sample of a shape is as long as every other: a padded batch wastes nothing, which is its best case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agrpo.aggregations.token_mean import TokenMean
from agrpo.losses.clip import Clip
from agrpo.policy.attention import PACKED
from agrpo.policy.head import head_of
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.tiles import Read, read_targets
from agrpo.records.batch import Row
from agrpo.records.sample import Sample, TokenSequence
from agrpo.records.tokens import StepTotals, TokenInputs, TopInputs
from agrpo.records.top_tokens import TopTokens
from stand.top_logprobs import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agrpo.losses import Loss
    from agrpo.packing import Packing

MICRO_TOKENS = 16384
NUM_TOP = 8
NOISE = 0.05
"""Spread of the sampler's log-probs around the policy's, nats."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One forward and backward of all samples."""

    cpu_seconds: float
    seconds: float
    loss: float
    grad_norm: float
    logprobs: np.ndarray
    """Of the trained tokens, sample by sample."""


def samples_of(shape: Shape, vocabulary: int) -> list[Sample]:
    """Groups of random tokens that share their prompt and nothing else."""
    draw = np.random.default_rng(0)
    made: list[Sample] = []
    for ticket in range(shape.groups):
        prompt = draw.integers(0, vocabulary, shape.prompt_tokens).tolist()
        for index in range(shape.num_generations):
            # The first token tells rollouts apart, so that the packing ratio is what the shape says.
            output = [index, *draw.integers(0, vocabulary, shape.completion_tokens - 1).tolist()]
            sequence = TokenSequence(
                tokens=prompt + output,
                trained=[False] * len(prompt) + [True] * len(output),
                sampler_logprobs=[0.0] * len(prompt) + [-1.0] * len(output),
                versions=[-1] * len(prompt) + [0] * len(output),
                top=_top_tokens(np.array(output), vocabulary),
            )
            advantage = float(draw.normal())
            made.append(
                Sample(
                    ticket=ticket,
                    rollout_index=index,
                    sequence_index=0,
                    sequence=sequence,
                    advantage=advantage,
                    staleness=0,
                )
            )
    return made


def _top_tokens(output: np.ndarray, vocabulary: int) -> TopTokens:
    ids = (output[:, None] + 7 * np.arange(NUM_TOP)) % vocabulary
    return TopTokens(ids.astype(np.int32), np.full(ids.shape, -3.0, np.float32))


def sampled_by(model: PreTrainedModel, samples: list[Sample], packing: Packing) -> list[Sample]:
    """The same samples as if a policy a little apart from this one had drawn them. A first pass, too, that nobody times."""
    with torch.no_grad():
        logprobs, _ = _passed(model, samples, laid_out(samples, packing), Clip(), backward=False)
    noise = np.random.default_rng(1).normal(0, NOISE, len(logprobs))
    ends = np.cumsum([sample.sequence.num_trained for sample in samples])
    told = np.split((logprobs + noise).astype(np.float32), ends[:-1])
    return [_told(sample, values.tolist()) for sample, values in zip(samples, told, strict=True)]


def _told(sample: Sample, logprobs: list[float]) -> Sample:
    untrained = [0.0] * (len(sample.sequence.tokens) - len(logprobs))
    return replace(sample, sequence=replace(sample.sequence, sampler_logprobs=untrained + logprobs))


def laid_out(samples: Sequence[Sample], packing: Packing) -> list[tuple[list[int], Row]]:
    """The planner's rows, and which samples each holds."""
    placed = packing.place(samples, MICRO_TOKENS)
    return [(numbers, packing.lay_out([samples[number] for number in numbers])) for numbers in placed]


def packing_ratio(samples: Sequence[Sample], rows: Sequence[tuple[list[int], Row]]) -> float:
    """Tokens of all samples over those that are forwarded."""
    return sum(len(sample.sequence.tokens) for sample in samples) / sum(row.num_tokens for _, row in rows)


def packed_turn(model: PreTrainedModel, samples: list[Sample], packing: Packing, loss: Loss | None = None) -> Turn:
    """Rows laid out beforehand, forwarded and backwarded as a learner does it."""
    rows, objective = laid_out(samples, packing), loss or plain_clip()
    return _timed(model, lambda: _passed(model, samples, rows, objective))


def plain_clip() -> Clip:
    """The objective that a peer has as well: no band."""
    return Clip(importance_min=0.0, importance_max=float("inf"))


def _passed(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    rows: Sequence[tuple[list[int], Row]],
    loss: Loss,
    *,
    backward: bool = True,
) -> tuple[np.ndarray, float]:
    totals, told, summed = totals_of(samples), [np.empty(0)] * len(samples), 0.0
    for numbers, row in rows:
        read = row_logprobs(model, row, temperature=1.0, with_top=loss.num_top > 0)
        inputs = TokenInputs(
            logprobs=read.logprobs,
            sampler_logprobs=torch.from_numpy(row.sampler_logprobs),
            advantages=torch.from_numpy(row.advantages),
            sample=torch.from_numpy(row.sample),
            num_samples=row.num_samples,
            top=_top_inputs(row, read) if loss.num_top else None,
        )
        share = TokenMean()(loss(inputs).loss, inputs, totals)
        if backward:
            share.backward()
        summed += float(share.detach())
        for place, number in enumerate(numbers):
            told[number] = read.logprobs.detach().numpy()[row.sample == place]
    return np.concatenate(told), summed


def _top_inputs(row: Row, read: Read) -> TopInputs:
    assert row.top is not None and read.top_logprobs is not None and read.log_rest is not None, "no top tokens"
    return TopInputs(
        logprobs=read.top_logprobs, sampler_logprobs=torch.from_numpy(row.top.logprobs), log_rest=read.log_rest
    )


def padded_turn(model: PreTrainedModel, samples: list[Sample]) -> Turn:
    """One batch through the model's own attention (sdpa), the head at trained positions alone."""
    tokens = torch.tensor([sample.sequence.tokens for sample in samples])
    trained = torch.tensor([sample.sequence.trained for sample in samples])
    sampler = torch.tensor([sample.sequence.sampler_logprobs for sample in samples])[trained]
    owner = trained.nonzero()[:, 0]
    advantages = torch.tensor([sample.advantage for sample in samples])[owner]
    totals, objective = totals_of(samples), plain_clip()
    decoder: Any = model.get_decoder()

    def passed() -> tuple[np.ndarray, float]:
        hidden = decoder(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).last_hidden_state
        picked = hidden[:, :-1][trained[:, 1:]]
        read = read_targets(head_of(model, 1.0), picked, tokens[trained], None, chunk=1024)
        inputs = TokenInputs(
            logprobs=read.logprobs,
            sampler_logprobs=sampler,
            advantages=advantages,
            sample=owner,
            num_samples=len(samples),
        )
        share = TokenMean()(objective(inputs).loss, inputs, totals)
        share.backward()
        return read.logprobs.detach().numpy(), float(share.detach())

    model.set_attn_implementation("sdpa")
    try:
        return _timed(model, passed)
    finally:
        model.set_attn_implementation(PACKED)


def totals_of(samples: Sequence[Sample]) -> StepTotals:
    trained = [sample.sequence.num_trained for sample in samples]
    return StepTotals(num_tokens=sum(trained), num_samples=len(samples), max_completion_length=max(trained))


def _timed(model: PreTrainedModel, passed: Callable[[], tuple[np.ndarray, float]]) -> Turn:
    """The norm of the gradient is taken, and the gradient dropped, when the clock has stopped."""
    cpu, wall = time.process_time(), time.perf_counter()
    logprobs, loss = passed()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    model.zero_grad(set_to_none=True)
    return Turn(cpu_seconds=cpu, seconds=wall, loss=loss, grad_norm=float(norm), logprobs=logprobs)


def take_turns(
    ways: Mapping[str, Callable[[], Turn]], rounds: int, tick: Callable[[str], None]
) -> dict[str, list[Turn]]:
    """Every way once in each round, one after the other."""
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            turns[name].append(way())
            tick(name)
    return turns


def cpu_seconds(turns: Sequence[Turn]) -> float:
    """Of the best turn: other work on the machine only ever adds."""
    return min(turn.cpu_seconds for turn in turns)


def wall_seconds(turns: Sequence[Turn]) -> float:
    return min(turn.seconds for turn in turns)
