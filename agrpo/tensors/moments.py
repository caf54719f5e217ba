"""AdamW's state by parameter name: two moments like the parameter, and a count of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agrpo.tensors.whole import Source, Tensors, shards_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

MOMENTS = ("exp_avg", "exp_avg_sq")


def step_counts(model: nn.Module, optimizer: Optimizer) -> dict[str, float]:
    """Steps by parameter; one that never had a gradient is not among them."""
    return {name: float(state["step"]) for name, state in _states(model, optimizer).items()}


def moments_of(model: nn.Module, optimizer: Optimizer) -> Tensors:
    """Both moments of every parameter that has them, as `{parameter}.{moment}`, each whole when it is asked for."""
    shards = shards_of(model)
    found: dict[str, Source] = {}
    for name, state in _states(model, optimizer).items():
        for moment in MOMENTS:
            tensor = state[moment]
            found[f"{name}.{moment}"] = (
                Source.here(tensor) if shards is None else Source.shared_out(tensor, shards, name, moment)
            )
    return Tensors(found)


def renew_moments(model: nn.Module, optimizer: Optimizer, steps: Mapping[str, float]) -> None:
    """`reset_moments`, in every process that holds a share of the model."""
    shards = shards_of(model)
    if shards is None:
        reset_moments(model, optimizer, steps)
    else:
        shards.reset_moments(steps)


def reset_moments(model: nn.Module, optimizer: Optimizer, steps: Mapping[str, float]) -> None:
    """Forget the optimizer's state, and give these parameters one with so many steps, to be filled."""
    import torch

    optimizer.state.clear()
    weights = dict(model.named_parameters())
    for name, count in steps.items():
        weight = weights[name]
        state: dict[str, Any] = {moment: torch.zeros_like(weight.detach()) for moment in MOMENTS}
        optimizer.state[weight] = {"step": torch.tensor(count), **state}


def _states(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    return {name: optimizer.state[weight] for name, weight in model.named_parameters() if optimizer.state.get(weight)}
