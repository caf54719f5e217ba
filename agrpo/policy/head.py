"""The output head: from hidden states to the logits that tokens are sampled from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from agrpo.errors import ModelError
from agrpo.tensors import served_in

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """From hidden states to the logits that are sampled from."""

    weight: Tensor
    bias: Tensor | None
    scale: float
    """The model's own factor on its logits."""
    softcap: float | None
    """The model's bound on their size."""
    temperature: float

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 (or fp64) `[n, V]`; no gradient."""
        with torch.no_grad():
            raw = linear(hidden, self.weight, self.bias)
            logits = raw.to(torch.promote_types(raw.dtype, torch.float32))
            if self.softcap is not None:
                return logits.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)
            factor = self.scale / self.temperature
            return logits if factor == 1 else logits.mul_(factor)

    def slope(self, logits: Tensor) -> Tensor | float:
        """Derivative of the logits by what the linear layer gave."""
        plain = self.scale / self.temperature
        if self.softcap is None:
            return plain
        # A token that cannot be drawn is far below the cap: its slope is 0, not minus infinity.
        return plain * (1 - (logits * (self.temperature / self.softcap)).clamp(-1, 1) ** 2)


def head_of(model: PreTrainedModel, temperature: float) -> Head:
    """The model's head, in the type of its arithmetic. Raises `ModelError` where it is no linear layer."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, torch.nn.Linear):
        raise ModelError(
            f"{type(model).__name__} ends in {type(layer).__name__}, expected a linear layer from hidden states to the "
            "vocabulary; use a causal language model without an adapter on its head"
        )
    config = model.config.get_text_config()
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    dtype = served_in(model) or layer.weight.dtype
    bias = cast("Tensor | None", layer.bias)
    return Head(
        weight=layer.weight.to(dtype),
        bias=None if bias is None else bias.to(dtype),
        scale=scale,
        softcap=softcap,
        temperature=temperature,
    )
