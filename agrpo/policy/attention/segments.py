"""Attention of a row by torch's own kernels: segments of about one shape are one batched call.

Exact on every device and in every type. Where scores are capped, they are computed in plain torch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agrpo.policy.attention.layout import Batch, Layout


def attend_segments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Queries `[T, H, D]`, keys `[T, H', D]` and values `[T, H', V]` to outputs `[T, H, V]`.

    `scaling`: factor on the scores, None for one over the root of D. `softcap`: bound on the scores' size.
    """
    plan = layout.plan
    queries, keys = _gathered(query, plan.queries), _gathered(key, plan.keys)
    # Split, not sliced: the gradient of a slice is as large as the row, and there would be one per batch.
    num_queries = [batch.count * batch.length for batch in plan.batches]
    num_keys = [batch.count * (batch.depth + batch.length) for batch in plan.batches]
    parts = (queries.split(num_queries), keys.split(num_keys), _gathered(value, plan.keys).split(num_keys))
    outputs: list[Tensor] = []
    for batch, *read in zip(plan.batches, *parts, strict=True):
        q, k, v = (_batched(states, batch) for states in read)
        blocks: list[Tensor] = []
        for block in layout.blocks(batch, window):
            shape, until = block.shape, block.first_query + block.shape.length
            keys_seen = slice(block.first_key, batch.depth + until)
            part = (q[:, :, block.first_query : until], k[:, :, keys_seen], v[:, :, keys_seen])
            band, causal = layout.band(shape, window, query.dtype), shape.depth == 0
            if softcap is None:
                blocks.append(_attend(*part, band=band, causal=causal, scaling=scaling))
            else:
                blocks.append(_capped(*part, band=band, causal=causal, scaling=scaling, softcap=softcap))
        output = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 2)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return _gathered(torch.cat(outputs), plan.outputs)


def _gathered(states: Tensor, index: Tensor | None) -> Tensor:
    return states if index is None else states.index_select(0, index)


def _batched(states: Tensor, batch: Batch) -> Tensor:
    """`[count * length, H, D]` to `[count, H, length, D]`."""
    return states.unflatten(0, (batch.count, -1)).transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, band: Tensor | None, causal: bool, scaling: float | None) -> Tensor:
    """`[count, H, length, V]`. `causal`: what a query sees where no band says it."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and q.is_cuda and (band is not None or q.dtype == torch.float32):
        # The GPU kernel that takes a mask or fp32 knows no groups; torch would choose one that holds every score.
        k, v, groups = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), 1
    return scaled_dot_product_attention(
        q, k, v, attn_mask=band, is_causal=band is None and causal, scale=scaling, enable_gqa=groups > 1
    )


def _capped(
    q: Tensor, k: Tensor, v: Tensor, *, band: Tensor | None, causal: bool, scaling: float | None, softcap: float
) -> Tensor:
    """Scores within `softcap`, as Gemma 2 has them: arXiv:2408.00118, section 2."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q @ k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = torch.tanh(scores / softcap) * softcap
    if band is not None:
        scores = scores + band
    elif causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype) @ v
