"""One optimizer step: forward and backward over the step's rows, clip, step."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from agrpo.errors import ModelError
from agrpo.policy.logprobs import row_logprobs
from agrpo.records.batch import Row
from agrpo.records.tokens import StepTotals, TokenInputs, TokenLoss

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from transformers import PreTrainedModel

    from agrpo.aggregations import Aggregation
    from agrpo.losses import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """What the step saw of one row's `N` trained tokens."""

    logprobs: np.ndarray
    """fp32 `[N]`, before the step."""
    entropy: np.ndarray
    """fp32 `[N]`, nats."""
    measures: Mapping[str, np.ndarray]
    """The loss's measures by name, `[N]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOutcome:
    """What one optimizer step did."""

    loss: float
    grad_norm: float
    """Before clipping."""
    rows: Sequence[RowOutcome]
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    *,
    loss: Loss,
    aggregation: Aggregation,
    totals: StepTotals,
    temperature: float,
    learning_rate: float,
    max_grad_norm: float,
) -> UpdateOutcome:
    """Take one step at `learning_rate` on the gradient of all rows.

    A step that trains no token is no step: the caller skips it. Raises `ModelError` where loss or gradient is not
    finite; weights and optimizer are then as they were.
    """
    assert totals.num_tokens > 0, (
        "a step without a trained token must be skipped: optimizer and schedule stay as they are"
    )
    clock = _Clock(model.device)
    passes: list[_Pass] = []
    for row in rows:
        passes.append(_forward(model, row, loss=loss, aggregation=aggregation, totals=totals, temperature=temperature))
        clock.add("forward")
        passes[-1].share.backward()
        clock.add("backward")
    summed = math.fsum(float(done.share.detach()) for done in passes)
    grad_norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
    if not (math.isfinite(summed) and math.isfinite(grad_norm)):
        optimizer.zero_grad(set_to_none=True)
        raise _not_finite(passes, summed, grad_norm, learning_rate)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    clock.add("optimizer")
    return UpdateOutcome(
        loss=summed,
        grad_norm=grad_norm,
        rows=[done.outcome() for done in passes],
        forward_seconds=clock.seconds["forward"],
        backward_seconds=clock.seconds["backward"],
        optimizer_seconds=clock.seconds["optimizer"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """A row's forward pass."""

    logprobs: Tensor
    entropy: Tensor
    sampler_logprobs: Tensor
    token_loss: TokenLoss
    share: Tensor
    """The row's part of the step's loss."""

    def outcome(self) -> RowOutcome:
        return RowOutcome(
            logprobs=self.logprobs.detach().cpu().numpy(),
            entropy=self.entropy.cpu().numpy(),
            measures={name: measure.detach().cpu().numpy() for name, measure in self.token_loss.measures.items()},
        )


def _forward(
    model: PreTrainedModel, row: Row, *, loss: Loss, aggregation: Aggregation, totals: StepTotals, temperature: float
) -> _Pass:
    read = row_logprobs(model, row, temperature=temperature)
    tokens = TokenInputs(
        logprobs=read.logprobs,
        sampler_logprobs=torch.from_numpy(row.sampler_logprobs).to(model.device),
        advantages=torch.from_numpy(row.advantages).to(model.device),
        sample=torch.from_numpy(row.sample).to(model.device),
        num_samples=row.num_samples,
    )
    token_loss = loss(tokens)
    share = aggregation(token_loss.loss, tokens, totals)
    return _Pass(
        logprobs=read.logprobs,
        entropy=read.entropy,
        sampler_logprobs=tokens.sampler_logprobs,
        token_loss=token_loss,
        share=share,
    )


def _not_finite(passes: Sequence[_Pass], summed: float, grad_norm: float, learning_rate: float) -> ModelError:
    bad = [number for number, done in enumerate(passes) if not math.isfinite(float(done.share.detach()))]
    lowest = min(float(done.logprobs.detach().min()) for done in passes if done.logprobs.numel())
    where = f" (first in row {bad[0]} of {len(passes)})" if bad else ""
    return ModelError(
        f"the step's loss is {summed}{where} and its gradient norm {grad_norm} at learning rate {learning_rate:g}, lowest "
        f"log-prob {lowest:.4g}; both must be finite. Weights and optimizer are as they were before the step. Lower "
        'optimizer.learning_rate, train in model.dtype = "float32", or look at the completions of this step'
    )


class _Clock:
    """Seconds by what they were spent on, with the device's work done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self.last = time.perf_counter()

    def add(self, what: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[what] += now - self.last
        self.last = now
