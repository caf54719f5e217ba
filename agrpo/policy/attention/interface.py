"""The attention that transformers calls in every layer of a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agrpo.errors import ModelError
from agrpo.policy.attention.layout import Layout
from agrpo.policy.attention.segments import attend_segments
from agrpo.policy.attention.varlen import attend_on_gpu

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

PACKED = "agrpo_packed"
"""Name under which transformers knows this attention."""


def register_attention(attention: Callable[..., tuple[Tensor, None]] | None = None) -> None:
    """Make `PACKED` an attention that a model of transformers can be set to. Again is harmless.

    `attention`: what computes it; None: `packed_attention`.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(PACKED, attention or packed_attention)
    AttentionMaskInterface.register(PACKED, _no_mask)


def attention_of(model: PreTrainedModel) -> str | None:
    """Name of the attention the model is set to."""
    return getattr(model.config.get_text_config(), "_attn_implementation", None)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: Layout | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Queries `[1, H, T, D]`, keys and values `[1, H', T, D]` to outputs `[1, T, H, D]`.

    `others` are what transformers hands to every attention. Raises `ModelError` for those that would change the result, as a
    mask would: transformers builds none for this attention.
    """
    family = type(module).__name__
    if packed_layout is None:
        raise ModelError(f"{family} does not hand the row's layout down to its attention; this family cannot be packed")
    given = {"attention_mask": attention_mask, **others}
    for name, what in _UNSUPPORTED.items():
        if given.get(name) is not None:
            raise ModelError(
                f"{family} has {what} ({name}), which packed attention does not compute; use another model"
            )
    # Norms in a wider type than the layers leave queries and keys in it.
    q, k, v = (states[0].transpose(0, 1).to(value.dtype) for states in (query, key, value))
    attend = attend_on_gpu if query.is_cuda else attend_segments
    output = attend(q, k, v, packed_layout, scaling=scaling, window=sliding_window, softcap=softcap)
    return output[None], None


_UNSUPPORTED = {
    "attention_mask": "a mask of its own",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
}


def _no_mask(*args: object, **kwargs: object) -> None:
    """Transformers builds no mask: the layout says it all."""
