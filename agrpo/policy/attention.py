"""Attention over a packed row: each sample sees its own tokens, causally, and nothing of its neighbours.

Samples of equal length that lie side by side are one batched call: exact, without padding and without a mask over the
whole row, whose cost grows with the square of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from agrpo.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

PACKED = "agrpo_packed"
"""Name under which transformers knows this attention."""


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of one length, side by side in a row."""

    count: int
    length: int


def runs_of(parents: np.ndarray) -> list[Run]:
    """The runs of a row, in order. `parents`: as in `Row`. Raises `ModelError` where samples share tokens."""
    starts = np.flatnonzero(parents < 0)
    expected = np.arange(-1, len(parents) - 1)
    expected[starts] = -1
    if not np.array_equal(parents, expected):
        raise ModelError(
            "a row whose samples share tokens cannot be read by packed attention, which expects whole samples one after "
            'another; set packing.name = "sequence"'
        )
    lengths = np.diff(starts, append=len(parents))
    firsts = np.flatnonzero(np.diff(lengths, prepend=0))
    counts = np.diff(firsts, append=len(lengths))
    return [Run(int(count), int(lengths[at])) for at, count in zip(firsts, counts, strict=True)]


def register_attention() -> None:
    """Make `PACKED` an attention that a model of transformers can be set to. Again is harmless."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(PACKED, packed_attention)
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
    packed_runs: Sequence[Run] | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Queries `[1, H, T, D]`, keys and values `[1, H', T, D]` to outputs `[1, T, H, D]`.

    `others` are what transformers hands to every attention. Raises `ModelError` for those that would change the result.
    """
    family = type(module).__name__
    if packed_runs is None:
        raise ModelError(f"{family} does not hand the row's layout down to its attention; this family cannot be packed")
    for name, what in _UNSUPPORTED.items():
        if others.get(name) is not None:
            raise ModelError(
                f"{family} has {what} ({name}), which packed attention does not compute; use another model"
            )
    outputs: list[Tensor] = []
    for run, q, k, v in zip(
        packed_runs, *(_batches(states, packed_runs) for states in (query, key, value)), strict=True
    ):
        band = _band(run.length, sliding_window, query.device)
        outputs.append(_attend(q, k, v, band, scaling).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None], None


_UNSUPPORTED = {"softcap": "capped attention scores", "s_aux": "attention sinks", "position_bias": "a position bias"}


def _batches(states: Tensor, runs: Sequence[Run]) -> list[Tensor]:
    """`[1, H, T, D]` to each run's samples as a batch `[count, H, length, D]`."""
    # Split, not sliced: the gradient of a slice is as large as the row, and there would be one per run.
    pieces = states[0].split([run.count * run.length for run in runs], dim=1)
    return [
        piece.unflatten(1, (run.count, run.length)).transpose(0, 1) for run, piece in zip(runs, pieces, strict=True)
    ]


def _attend(q: Tensor, k: Tensor, v: Tensor, band: Tensor | None, scaling: float | None) -> Tensor:
    """`[count, H, length, D]`."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and q.is_cuda and (band is not None or q.dtype == torch.float32):
        # The GPU kernel that takes a mask or fp32 knows no groups; torch would choose one that holds every score.
        k, v, groups = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), 1
    return scaled_dot_product_attention(
        q, k, v, attn_mask=band, is_causal=band is None, scale=scaling, enable_gqa=groups > 1
    )


def _band(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which keys a query of a sliding window sees, bool `[length, length]`; None where plain causality says it."""
    if window is None or length <= window:
        return None
    seen = torch.ones(length, length, dtype=torch.bool, device=device)
    return seen.tril().triu(1 - window)


def _no_mask(*args: object, **kwargs: object) -> None:
    """Transformers builds no mask: the runs say it all."""
