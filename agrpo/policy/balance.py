"""The load-balancing loss of a mixture of experts, over an optimizer step. Switch Transformer, arXiv:2101.03961, eq. 4 to 6.

`E * sum_e f_e * P_e` over `E` experts: `f_e` is how often a token is sent to expert e, `P_e` the mean probability that
routers give it, both over all tokens and layers, as transformers counts them. It is a product of two means over the step,
and so no sum over rows: where a step has several rows, a first forward without gradient counts `f`, and the step takes
about a third longer. A token that several samples share counts once for each of them, so the loss is that of the samples
forwarded one by one. Tokens are those that a trained token is predicted through: no padding, and no sample's last one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agrpo.errors import ConfigError
from agrpo.policy.logprobs import hidden_states
from agrpo.policy.ranks.group import Group
from agrpo.policy.ranks.sharding import within
from agrpo.records.batch import Row

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

COEFFICIENT = "router_aux_loss_coef"
"""What transformers' configurations call the loss's weight, and the setting of `[model]` too."""
ROUTERS = "router_logits"
"""Under which transformers' families say which of their modules are routers."""


def settle_balance(model: PreTrainedModel, coefficient: float | None) -> None:
    """Give the model's configuration the weight of its balancing loss; None leaves what it says.

    Raises `ConfigError` for a weight, be it 0, of a model that has no routers, or whose family balances them otherwise: by
    a bias on the choice, as DeepSeek-V3.
    """
    if coefficient is None:
        return
    config = model.config.get_text_config()
    lacks = "no routers whose load could be balanced" if not _routers(model) else "no balancing loss in transformers"
    if not hasattr(config, COEFFICIENT) or not _routers(model):
        raise ConfigError(f"model.{COEFFICIENT} = {coefficient:g}: {type(model).__name__} has {lacks}; leave it out")
    setattr(config, COEFFICIENT, coefficient)


def step_balance(model: PreTrainedModel, rows: Sequence[Row], group: Group) -> StepBalance:
    """The balancing loss of a step. `rows`: this rank's; all ranks of the group must call it.

    Forwards every row once, unless there is but one, or no balancing.
    """
    config = model.config.get_text_config()
    coefficient = getattr(config, COEFFICIENT, None) or 0.0
    routers = _routers(model) if coefficient else []
    balance = StepBalance(coefficient=coefficient, routers=routers, top_k=getattr(config, "num_experts_per_tok", 1))
    if routers and (len(rows) > 1 or group.size > 1):
        balance.load = _counted(model, rows, group, balance)
    return balance


@dataclass(frozen=True, slots=True)
class Load:
    """How tokens were sent to experts, over all layers of a step. It can be added up over rows."""

    chosen: Tensor
    """fp64 `[E]`: tokens by expert."""
    num_tokens: int
    """Times layers."""

    @property
    def shares(self) -> Tensor:
        """fp32 `[E]`: how often a token is sent to an expert, `f`."""
        return (self.chosen / self.num_tokens).float()


class StepBalance:
    """Reads routers while rows are forwarded. Without routers it does nothing, and its loss is 0."""

    def __init__(self, *, coefficient: float, routers: Sequence[Router], top_k: int) -> None:
        self.load: Load | None = None
        """Of the whole step; None: of its one row, which is not forwarded yet."""
        self._coefficient = coefficient
        self._routers = routers
        self._top_k = top_k
        self._logits: list[Tensor] = []
        self.loss = 0.0
        """Of the rows whose share was asked for, before the coefficient."""

    @property
    def is_on(self) -> bool:
        return bool(self._routers)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Within the block, what routers say is kept."""
        self._logits = []
        hooks = [router.module.register_forward_hook(partial(self._keep, router.index)) for router in self._routers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def load_of(self, row: Row) -> Load:
        """Of the row that was read last."""
        weights = torch.from_numpy(samples_through(row)).to(self._logits[0].device, torch.float64)
        chosen = torch.zeros(self._logits[0].shape[-1], dtype=torch.float64, device=weights.device)
        for logits in self._logits:
            experts = logits.detach().float().softmax(-1).topk(self._top_k, dim=-1).indices
            chosen.index_add_(0, experts.flatten(), weights.repeat_interleave(self._top_k))
        return Load(chosen, int(weights.sum()) * len(self._logits))

    def share_of(self, row: Row) -> Tensor | float:
        """What the row that was read last adds to the step's loss, coefficient included."""
        if not self.is_on:
            return 0.0
        load = self.load or self.load_of(row)
        weights = torch.from_numpy(samples_through(row)).to(self._logits[0].device, torch.float32)
        probabilities = torch.stack([weights @ logits.float().softmax(-1) for logits in self._logits]).sum(0)
        loss = len(load.shares) * (load.shares @ probabilities) / load.num_tokens
        self.loss += float(loss.detach())
        self._logits = []
        return self._coefficient * loss

    def _keep(self, index: int, module: nn.Module, inputs: object, output: Any) -> None:
        logits = output[index] if isinstance(output, tuple) else output
        self._logits.append(logits.reshape(-1, logits.shape[-1]))


@dataclass(frozen=True, slots=True)
class Router:
    """A module that gives every token a logit for every expert."""

    module: nn.Module
    index: int
    """Which of its outputs they are."""


def samples_through(row: Row) -> np.ndarray:
    """int64 `[T]`: how many samples have a trained token that is predicted at a position or after it."""
    last = np.full(row.num_samples, -1, np.int64)
    np.maximum.at(last, row.sample, row.index)
    counts = np.bincount(last[last >= 0], minlength=row.num_tokens)
    # A parent lies before its children.
    for place in range(row.num_tokens - 1, 0, -1):
        if row.parents[place] >= 0:
            counts[row.parents[place]] += counts[place]
    return counts


def _counted(model: PreTrainedModel, rows: Sequence[Row], group: Group, balance: StepBalance) -> Load:
    """The load of all rows of all ranks, by a forward of each."""
    loads: list[Load] = []
    for row in rows:
        with balance.reading():
            within(model, partial(hidden_states, model, row.tokens, row.positions, row.parents))
        loads.append(balance.load_of(row))
    chosen = torch.stack([load.chosen for load in loads]).sum(0)
    said = group.everyone((chosen.tolist(), sum(load.num_tokens for load in loads)))
    return Load(chosen.new_tensor([each for each, _ in said]).sum(0), sum(count for _, count in said))


def _routers(model: PreTrainedModel) -> list[Router]:
    """Those that the model's family names for transformers' own recording."""
    decoder: Any = model.get_decoder()
    named = (getattr(decoder, "_can_record_outputs", None) or {}).get(ROUTERS)
    found: list[Router] = []
    for name, module in decoder.named_modules():
        for recorder in named if isinstance(named, list) else [named]:
            kind, layer = getattr(recorder, "target_class", recorder), getattr(recorder, "layer_name", None)
            is_meant = isinstance(kind, type) and isinstance(module, kind)
            if is_meant and (layer is None or f".{layer.strip('.')}." in f".{name}."):
                found.append(Router(module, getattr(recorder, "index", 1)))
    return found
