"""Weights split over ranks by FSDP2: a decoder layer at a time, and what lies outside of the layers with the root.

Between steps a rank holds its shards alone. While a layer computes its weights are whole, and what the root holds (the
embedding, the last norm, the head) are so while the root's own `forward` runs. Whoever reads the head must do it there,
which is what `within` is for. Gradients are summed over the ranks, not averaged, as the step's totals span all of them.

PyTorch FSDP, arXiv:2304.11277; per-parameter sharding as in TorchTitan, arXiv:2410.06511.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from agrpo.errors import MissingPackage, ModelError
from agrpo.policy.ranks.group import Group

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

T = TypeVar("T")

NEEDED = ("set_gradient_divide_factor", "set_force_sum_reduction_for_comms", "set_reduce_scatter_unused_params")
"""Of FSDP2, what older releases of torch lack."""


NARROW = (torch.bfloat16, torch.float16)
"""Types that no sum over ranks is made in: it would be rounded at every rank."""


def shard(model: PreTrainedModel, group: Group, compute_dtype: torch.dtype | None = None) -> None:
    """Split a model's weights over the group's ranks, each of which holds the whole of it so far, on whatever device.

    `compute_dtype`: type of the weights while a layer computes; None: the one they have. Raises `ModelError` for a model
    that does not say what its layers are.
    """
    assert group.mesh is not None, "a process alone splits nothing"
    absent = [name for name in NEEDED if not hasattr(FSDPModule, name)]
    if absent:
        raise MissingPackage(
            f"torch {torch.__version__} has no FSDPModule.{absent[0]}, which several learner processes need; install torch "
            "2.13, or set workers.learner_processes = 1"
        )
    # What adds up stays in float32, and is rounded where autocast rounds it in a process alone.
    narrow = compute_dtype is not None or any(weight.dtype in NARROW for weight in model.parameters())
    policy = MixedPrecisionPolicy(
        param_dtype=compute_dtype,
        reduce_dtype=torch.float32 if narrow else None,
        cast_forward_inputs=False,
    )
    for layer in layers_of(model):
        fully_shard(layer, mesh=group.mesh, mp_policy=policy)
    fully_shard(model, mesh=group.mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_reduce_scatter_unused_params(True)
    _let_in(model)


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The layers that a model says are never to be split: what is made whole at once."""
    kinds = set(getattr(model, "_no_split_modules", None) or [])
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    if not layers:
        raise ModelError(
            f"{type(model).__name__} does not say which of its modules are layers (_no_split_modules), so its weights cannot "
            "be shared out; set workers.learner_processes = 1"
        )
    return layers


def is_sharded(model: nn.Module) -> bool:
    """Whether this process holds but its share of the weights."""
    return isinstance(model, FSDPModule)


def within(model: nn.Module, work: Callable[[], T], *, loss_of: Callable[[T], Tensor] | None = None) -> T:
    """Do the work while the weights that the model's root holds are whole: it may call the decoder, and read the head.

    `loss_of`: what backward will begin from; None: there will be none, and the work keeps no gradient. Of a model whose
    weights are split all ranks must call it, with the same work.
    """
    with torch.set_grad_enabled(loss_of is not None):
        if not is_sharded(model):
            return work()
        done: list[T] = []

        def inside() -> list[Tensor]:
            done.append(work())
            return [loss_of(done[0])] if loss_of else []

        root: Any = model
        root(work=inside)
    if loss_of is None:
        root.reshard()
    return done[0]


def whole(tensor: Tensor) -> Tensor:
    """The tensor in one piece, on every rank. All ranks must call it, where it is split."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_share(tensor: Tensor) -> Tensor:
    """What this rank holds of it: the storage itself, without a gradient."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def take_share(tensor: Tensor, source: Tensor | None) -> None:
    """Fill a tensor that is split from rank 0's whole one; `source` is None elsewhere. All ranks must call it."""
    assert isinstance(tensor, DTensor), "only what is split has shares"
    given = torch.empty(tensor.shape, dtype=tensor.dtype) if source is None else source
    shares = distribute_tensor(given.to(tensor.device, tensor.dtype), tensor.device_mesh, tensor.placements)
    with torch.no_grad():
        tensor.to_local().copy_(shares.to_local())


def _let_in(model: PreTrainedModel) -> None:
    """Have the root's `forward` do other work on demand: FSDP makes its weights whole around it.

    What the work returns is what FSDP looks at: the tensors that backward begins from.
    """
    inner: Callable[..., Any] = model.forward
    root: Any = model

    def forward(*args: Any, work: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        return inner(*args, **kwargs) if work is None else work()

    root.forward = forward
