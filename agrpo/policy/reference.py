"""The reference policy: what a penalty for divergence measures the policy in training against.

Where all weights are trained it is a second model: those that training began with, or a mixture that follows the policy
(TR-DPO, arXiv:2404.09656). Where an adapter is trained, what training began with is still there: the model without it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.model import load_policy
from agrpo.policy.ranks.sharding import own_share, within
from agrpo.tensors import has_adapter, text_tensors

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from agrpo.config import ModelSection
    from agrpo.config.objective import DivergenceSection
    from agrpo.policy.ranks.group import Group
    from agrpo.policy.trainee import Trainee
    from agrpo.records.batch import Row
    from agrpo.tensors.whole import Tensors


class Reference(Protocol):
    """As one rank holds it."""

    def logprobs(self, row: Row, temperature: float) -> Tensor:
        """`[N]`, of the row's targets over their candidates; no gradient. All ranks must call it, each with a row of its own."""
        ...

    @property
    def state(self) -> Tensors | None:
        """Its weights, where they are more than what training began with. None: whoever loads it again has it."""
        ...


def load_reference(
    policy: PreTrainedModel,
    divergence: DivergenceSection,
    model: ModelSection,
    *,
    group: Group,
    micro_tokens: int | None = None,
) -> Reference | None:
    """What the policy, just loaded, is to be held against. None: there is no penalty, and nothing is loaded (G-004).

    All ranks of the group must call it. Raises what `load_policy` does.
    """
    if divergence.coefficient == 0:
        return None
    if has_adapter(policy):
        return WithoutAdapter(policy)
    # It has no backward pass that anything could be computed again for.
    section = replace(model, activation_checkpointing=False)
    copy = load_policy(section, str(group.device), group=group, micro_tokens=micro_tokens)
    copy.requires_grad_(False)
    return Copy(copy, moves=divergence.sync_steps is not None)


@dataclass(frozen=True, slots=True)
class WithoutAdapter:
    """The policy's own model while its adapter is switched off. It takes no memory, and cannot follow the policy."""

    policy: PreTrainedModel

    @property
    def state(self) -> None:
        return None

    def logprobs(self, row: Row, temperature: float) -> Tensor:
        with adapter_off(self.policy):
            return _logprobs(self.policy, row, temperature)


@dataclass(frozen=True, slots=True)
class Copy:
    """A model of its own, shared out over ranks as the policy is."""

    model: PreTrainedModel
    moves: bool
    """Whether it follows the policy (`divergence.sync_steps`)."""

    @property
    def state(self) -> Tensors | None:
        return text_tensors(self.model) if self.moves else None

    def logprobs(self, row: Row, temperature: float) -> Tensor:
        return _logprobs(self.model, row, temperature)

    def follow(self, policy: PreTrainedModel, mixup: float) -> None:
        """`mixup x policy + (1 - mixup) x reference`, weight by weight, each rank its shares (G-091).

        Of what is trained, in float32 at least, rounded once to the type that the weights are held in.
        """
        mine = dict(self.model.named_parameters())
        trained = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
        with torch.no_grad():
            for name, weight in trained.items():
                own, other = own_share(mine[name]), own_share(weight)
                dtype = torch.promote_types(own.dtype, torch.float32)
                own.copy_(mixup * other.to(dtype) + (1 - mixup) * own.to(dtype))


@contextmanager
def adapter_off(model: PreTrainedModel) -> Generator[None]:
    """Within the block the model computes as it would without its adapter.

    PEFT's own switch also stops the adapter's weights from having gradients, which ranks that share them have settled.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers: list[Any] = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def _logprobs(model: PreTrainedModel, row: Row, temperature: float) -> Tensor:
    """A row without a term is forwarded all the same: other ranks wait for it."""
    read = within(model, partial(row_logprobs, model, row.with_a_term(), temperature=temperature))
    return read.logprobs.detach()[: row.num_trained]


@dataclass(frozen=True, slots=True)
class SyncReference:
    """The reference moves towards the policy."""

    mixup: float

    def __call__(self, trainee: Trainee, given: Any = None) -> None:
        copy_of(trainee.reference).follow(trainee.model, self.mixup)


def copy_of(reference: Reference | None) -> Copy:
    """The reference, which is a model of its own."""
    assert isinstance(reference, Copy), "there is no reference whose weights could be read or moved"
    return reference
