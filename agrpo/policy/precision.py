"""Mixed precision in one process: weights and the optimizer's state in float32, the arithmetic in another type.

The products of matrices and attention are computed in that type, what adds up (norms, softmax, the residual stream) in
float32: torch's autocast. What a policy publishes is rounded to it, so an engine holds what was computed with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from agrpo.tensors import serve_in, served_in

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def compute_in(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Have the model and its decoder compute in `dtype`, give hidden states in it, and be published in it."""
    decoder: Any = model.get_decoder()
    whole: Any = model
    decoder.forward = _within(decoder.forward, model, dtype, casts_output=True)
    whole.forward = _within(whole.forward, model, dtype, casts_output=False)
    serve_in(model, dtype)


def computed_in(model: PreTrainedModel) -> torch.dtype:
    """The type of the model's arithmetic."""
    return served_in(model) or model.dtype


def _within(
    forward: Callable[..., Any], model: PreTrainedModel, dtype: torch.dtype, *, casts_output: bool
) -> Callable[..., Any]:
    @wraps(forward)
    def computed(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(model.device.type, dtype):
            output = forward(*args, **kwargs)
        if casts_output:
            output.last_hidden_state = output.last_hidden_state.to(dtype)
        return output

    return computed
