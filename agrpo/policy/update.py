"""One optimizer step: forward and backward over the step's rows, clip, step; by one process, or by ranks that share the rows.

Each rank forwards its own rows. Gradients are summed over ranks after every row, the loss and what was seen of tokens are
gathered, so a step does not depend on the number of ranks but for rounding (A-143).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from agrpo.errors import ModelError
from agrpo.policy.balance import StepBalance, step_balance
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.ranks.group import Group
from agrpo.policy.ranks.sharding import whole, within
from agrpo.policy.tiles import Read
from agrpo.records.batch import Row
from agrpo.records.tokens import StepTotals, TokenInputs, TokenLoss, TopInputs

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from agrpo.objective import Objective
    from agrpo.policy.reference import Reference

T = TypeVar("T")


class NotFinite(ModelError):
    """The loss or the gradient of a step. Every rank raises it, and its weights and optimizer are as they were."""


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
    bonus: float
    """For entropy: what the loss would be greater by without it."""
    entropy_ahead: float | None
    """Mean entropy of the tokens with a policy term, nats. None: nobody looked ahead."""
    rows: Sequence[RowOutcome]
    """Of all ranks, in the plan's order; on a rank but the first none."""
    aux_loss: float | None
    """Of balancing the experts, before its coefficient. None: there is no such loss."""
    forward_seconds: float
    """Of this rank, as are the other two."""
    backward_seconds: float
    optimizer_seconds: float


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    *,
    objective: Objective,
    totals: StepTotals,
    temperature: float,
    learning_rate: float,
    max_grad_norm: float,
    on_row: Callable[[], None] = lambda: None,
    group: Group | None = None,
    reference: Reference | None = None,
) -> UpdateOutcome:
    """Take one step at `learning_rate` on the gradient of all rows. `on_row` is called after each row's backward.

    Where the objective looks ahead, all rows are forwarded once more before, without gradient, for what their tokens'
    entropies decide; `totals` holds the coefficient before the step. A step that trains no token is no step: the caller
    skips it. Raises `NotFinite` where loss or gradient is not finite; weights and optimizer are then as they were.

    `group`: whose ranks all call this, each with its own `rows`, as many as every other; None: a process alone.
    `reference`: what the objective's penalty measures against; None: it has none.
    """
    assert totals.num_tokens > 0, "a step without a trained token must be skipped: nothing moves in it"
    group = group or Group(model.device)
    clock = _Clock(model.device)
    passes: list[_Pass] = []
    ahead = _entropies(model, rows, temperature, on_row) if objective.looks_ahead else None
    if ahead is not None:
        totals = objective.looked_ahead(totals, np.concatenate(_by_plan(group.everyone(ahead))))
    balance = step_balance(model, rows, group)
    forward = partial(_forward, model, objective=objective, totals=totals, temperature=temperature)
    against = reference if objective.needs_reference else None
    for row, entropy_ahead in zip(rows, ahead or repeat(None), strict=False):
        known = None if against is None else against.logprobs(row, temperature)
        work = partial(forward, row, known, entropy_ahead) if row.num_trained else partial(_idle, model, row)
        passes.append(within(model, partial(_balanced, balance, row, work), loss_of=lambda done: done.share))
        clock.add("forward")
        passes[-1].share.backward()
        clock.add("backward")
        on_row()
    seen = _by_plan(group.everyone([_told(done) for done in passes]))
    summed = math.fsum(told.share for told in seen)
    grad_norm = float(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)))
    if not (math.isfinite(summed) and math.isfinite(grad_norm)):
        optimizer.zero_grad(set_to_none=True)
        raise _not_finite(seen, summed, grad_norm, learning_rate)
    for parameters in optimizer.param_groups:
        parameters["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    clock.add("optimizer")
    return UpdateOutcome(
        loss=summed,
        grad_norm=grad_norm,
        bonus=math.fsum(told.bonus for told in seen),
        entropy_ahead=totals.entropy_mean,
        rows=_by_plan(group.gathered([done.outcome() for done in passes])),
        aux_loss=math.fsum(group.everyone(balance.loss)) if balance.is_on else None,
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
    bonus: Tensor | None = None
    """For entropy, of that part. None: there is none."""

    def outcome(self) -> RowOutcome:
        return RowOutcome(
            logprobs=self.logprobs.detach().cpu().numpy(),
            entropy=self.entropy.detach().cpu().numpy(),
            measures={name: measure.detach().cpu().numpy() for name, measure in self.token_loss.measures.items()},
        )


def _entropies(
    model: PreTrainedModel, rows: Sequence[Row], temperature: float, on_row: Callable[[], None]
) -> list[np.ndarray]:
    """Entropy of each row's tokens, fp32 `[N]`, nats. All ranks must call it, with as many rows."""
    found: list[np.ndarray] = []
    for row in rows:
        read = partial(row_logprobs, model, row, temperature=temperature)
        work = partial(_entropy_of, read) if row.num_trained else partial(_entropy_of, partial(_idle, model, row))
        found.append(within(model, work))
        on_row()
    return found


def _entropy_of(read: Callable[[], Read | _Pass]) -> np.ndarray:
    return read().entropy.cpu().numpy()


def _forward(
    model: PreTrainedModel,
    row: Row,
    reference_logprobs: Tensor | None,
    entropy_ahead: np.ndarray | None,
    *,
    objective: Objective,
    totals: StepTotals,
    temperature: float,
) -> _Pass:
    with_top = objective.loss.num_top > 0 and row.top is not None
    read = row_logprobs(
        model, row, temperature=temperature, with_top=with_top, entropy_gradient=totals.entropy_coefficient > 0
    )
    tokens = TokenInputs(
        logprobs=read.logprobs,
        sampler_logprobs=torch.from_numpy(row.sampler_logprobs).to(model.device),
        advantages=torch.from_numpy(row.advantages).to(model.device),
        sample=torch.from_numpy(row.sample).to(model.device),
        num_samples=row.num_samples,
        entropy=read.entropy,
        entropy_ahead=None if entropy_ahead is None else torch.from_numpy(entropy_ahead).to(model.device),
        top=_top_inputs(row, read) if with_top else None,
        reference_logprobs=reference_logprobs,
    )
    found = objective(tokens, totals)
    return _Pass(
        logprobs=read.logprobs,
        entropy=read.entropy,
        sampler_logprobs=tokens.sampler_logprobs,
        token_loss=found.token_loss,
        share=found.share,
        bonus=found.bonus,
    )


def _balanced(balance: StepBalance, row: Row, forward: Callable[[], _Pass]) -> _Pass:
    """A forward pass whose share holds the row's part of the balancing loss."""
    with balance.reading():
        done = forward()
    return replace(done, share=done.share + balance.share_of(row))


def _idle(model: PreTrainedModel, row: Row) -> _Pass:
    """A row without a term: a loss of 0 that every weight has a part in, so that all ranks have the same gradients to sum."""
    read = row_logprobs(model, row.with_a_term(), temperature=1.0)
    none = read.logprobs.detach()[:0]
    return _Pass(
        logprobs=none,
        entropy=none,
        sampler_logprobs=none,
        token_loss=TokenLoss(loss=none),
        share=0 * read.logprobs.sum(),
    )


def _top_inputs(row: Row, read: Read) -> TopInputs:
    assert row.top is not None and read.top_logprobs is not None and read.log_rest is not None, (
        "top tokens were not read"
    )
    return TopInputs(
        logprobs=read.top_logprobs,
        sampler_logprobs=torch.from_numpy(row.top.logprobs).to(read.top_logprobs.device),
        log_rest=read.log_rest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What every rank hears of a row's forward pass."""

    share: float
    bonus: float
    lowest_logprob: float


def _told(done: _Pass) -> _Told:
    logprobs = done.logprobs.detach()
    return _Told(
        share=float(done.share.detach()),
        bonus=0.0 if done.bonus is None else float(done.bonus),
        lowest_logprob=float(logprobs.min()) if logprobs.numel() else math.inf,
    )


def _by_plan(ranks: Sequence[Sequence[T]]) -> list[T]:
    """Rows of every rank in the order of a plan, where row `m * R + r` is micro-batch m of rank r of R."""
    return [row for micro_batch in zip(*ranks, strict=True) for row in micro_batch]


def _not_finite(seen: Sequence[_Told], summed: float, grad_norm: float, learning_rate: float) -> NotFinite:
    bad = [number for number, told in enumerate(seen) if not math.isfinite(told.share)]
    lowest = min(told.lowest_logprob for told in seen)
    where = f" (first in row {bad[0]} of {len(seen)})" if bad else ""
    return NotFinite(
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
