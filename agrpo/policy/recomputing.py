"""Activation checkpointing: of each layer its input alone is kept, and backward computes the rest again.

The memory of activations falls from what all layers hold to what one does, for about a third more time, and the gradient is
the same. Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import checkpoint

from agrpo.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def recompute_layers(model: PreTrainedModel) -> None:
    """Have backward compute the layers of the text model again. Raises `ModelError` for a family that cannot."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    decoder: Any = model.get_decoder()
    layers: list[Any] = [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(
            f"{type(model).__name__} does not say which of its layers can be computed again; set "
            "model.activation_checkpointing = false"
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        # Nothing is drawn in a layer: dropout is off.
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        # transformers looks at it there; what is inside the layer stays as it is when sampling.
        layer.training = True
