"""The fixtures of docs/spec/papers.md, section 2, as tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from agrpo.aggregations import aggregations
from agrpo.losses import Loss
from agrpo.losses.clip import Clip
from agrpo.objective import Objective, ObjectiveShare
from agrpo.records.tokens import StepTotals, TokenInputs

F1_RATIOS = [1.5, 0.9, 0.7, 1.1, 1.0, 2.0]
F1_LOGPROBS = [-0.5, -1.0, -0.2, -2.0, -0.7, -1.5]
F1_SAMPLE = [0, 0, 1, 1, 1, 1]
F2_CORRECTION = [1.2, 3.0, 0.4, 1.0, 1.0, 0.9]


def tensor(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens_of(
    ratios: Sequence[float],
    sample: Sequence[int],
    advantages: Sequence[float],
    *,
    logprobs: Sequence[float] | None = None,
    corrections: Sequence[float] | None = None,
    entropies: Sequence[float] | None = None,
    reference: float | None = None,
) -> TokenInputs:
    """`advantages`: by sample. `corrections`: old policy over sampler. `reference`: log of reference over policy at every token."""
    own = tensor([-1.0] * len(ratios) if logprobs is None else logprobs).requires_grad_()
    old = own.detach() - tensor(ratios).log()
    places = torch.tensor(sample)
    return TokenInputs(
        logprobs=own,
        sampler_logprobs=old if corrections is None else old - tensor(corrections).log(),
        old_logprobs=None if corrections is None else old,
        reference_logprobs=None if reference is None else own.detach() + reference,
        advantages=tensor(advantages)[places],
        entropy=None if entropies is None else tensor(entropies).requires_grad_(),
        sample=places,
        num_samples=len(advantages),
    )


def f1(advantages: Sequence[float] = (1.0, -1.0), **given: Any) -> TokenInputs:
    return tokens_of(F1_RATIOS, F1_SAMPLE, advantages, logprobs=F1_LOGPROBS, **given)


def f2() -> TokenInputs:
    return f1(corrections=F2_CORRECTION)


def totals_of(tokens: TokenInputs, **given: Any) -> StepTotals:
    num_tokens = tokens.logprobs.numel()
    totals = StepTotals(
        num_tokens=num_tokens,
        num_samples=tokens.num_samples,
        max_completion_length=10,
        num_entropy_tokens=num_tokens,
    )
    return replace(totals, **given)


def clip(**knobs: Any) -> Clip:
    """Without a band."""
    return Clip(importance_min=0.0, importance_max=math.inf, **knobs)


def share_of(
    loss: Loss, aggregation: str, tokens: TokenInputs, totals: StepTotals | None = None, **around: Any
) -> ObjectiveShare:
    objective = Objective(loss=loss, aggregation=aggregations.build(aggregation, {}), **around)
    return objective(tokens, totals or totals_of(tokens))


def value_of(
    loss: Loss, aggregation: str, tokens: TokenInputs, totals: StepTotals | None = None, **around: Any
) -> float:
    return share_of(loss, aggregation, tokens, totals, **around).share.item()
