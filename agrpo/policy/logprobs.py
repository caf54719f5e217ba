"""Log-probs of trained tokens: one forward of a row, and a head that never holds a row of logits.

The head works on a few hundred positions at a time and computes them again in backward. A confident prediction keeps
its digits: `log p = -softplus(rest - z)`, where `rest` is the logsumexp of all other tokens, while `z - logsumexp(z)`
rounds 1 - p to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, softplus

from agrpo.errors import ModelError
from agrpo.policy.attention import PACKED, attention_of, runs_of
from agrpo.records.batch import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGEST_TILE = 2**25
"""Most logits held at once: 128 MiB in fp32."""
LEFT_OUT = -1e30
"""Logit of a token that cannot be drawn. Finite: a set of one token has an empty rest, whose gradient would be nan."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Of the row's `N` trained tokens, fp32, on the model's device."""

    logprobs: Tensor
    """`[N]`, with gradient."""
    entropy: Tensor
    """`[N]`, nats, of the whole next-token distribution; detached."""


def row_logprobs(model: PreTrainedModel, row: Row, *, temperature: float, chunk: int = 1024) -> RowLogprobs:
    """Log-probs of the row's targets at this sampling temperature, over the candidate sets where the row has them.

    `chunk`: most positions whose logits are held at once.
    """
    hidden = hidden_states(model, row.tokens, row.positions, row.parents)
    index = torch.from_numpy(row.index).to(hidden.device)
    targets = torch.from_numpy(row.targets).to(hidden.device)
    head = head_of(model, temperature)
    size = max(1, min(chunk, LARGEST_TILE // head.weight.shape[0]))
    tiles = _Tiles(head=head, targets=targets, candidates=row.candidates, size=size)
    outputs: Any = _TiledHead.apply(hidden.index_select(0, index), head.weight, head.bias, tiles)
    return RowLogprobs(*outputs)


def next_token_logprobs(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """Log-probs `[V]` of the token after `token_ids`, at temperature 1; no gradient."""
    length = len(token_ids)
    with torch.no_grad():
        positions = np.arange(length)
        hidden = hidden_states(model, np.array(token_ids, np.int64), positions, positions - 1)
        return head_of(model, 1.0).logits(hidden[-1:])[0].log_softmax(-1)


def hidden_states(model: PreTrainedModel, tokens: np.ndarray, positions: np.ndarray, parents: np.ndarray) -> Tensor:
    """What the head reads, `[T, H]`. Arrays int64 `[T]`, as in `Row`."""
    attention = attention_of(model)
    assert attention == PACKED, (
        f"the model's attention is {attention}, under which samples of a row would see each other"
    )
    decoder: Any = model.get_decoder()
    device = model.device
    output = decoder(
        input_ids=torch.from_numpy(tokens)[None].to(device),
        position_ids=torch.from_numpy(positions)[None].to(device),
        use_cache=False,
        packed_runs=runs_of(parents),
    )
    return output.last_hidden_state[0]


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
    """The model's head. Raises `ModelError` where it is no linear layer."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, torch.nn.Linear):
        raise ModelError(
            f"{type(model).__name__} ends in {type(layer).__name__}, expected a linear layer from hidden states to the "
            "vocabulary; use a causal language model without an adapter on its head"
        )
    config = model.config.get_text_config()
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    return Head(weight=layer.weight, bias=layer.bias, scale=scale, softcap=softcap, temperature=temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """What the head reads beside tensors that carry a gradient, a tile of positions at a time."""

    head: Head
    targets: Tensor
    candidates: list[list[int]] | None
    size: int

    def slices(self) -> list[slice]:
        return [slice(start, start + self.size) for start in range(0, len(self.targets), self.size)]

    def logits(self, hidden: Tensor, tile: slice) -> Tensor:
        """`[n, V]`, `LEFT_OUT` where a token is no candidate."""
        logits = self.head.logits(hidden[tile])
        if self.candidates is None:
            return logits
        return logits.where(_drawable(self.candidates[tile], self.targets[tile], logits), LEFT_OUT)


def _drawable(candidates: list[list[int]], targets: Tensor, logits: Tensor) -> Tensor:
    """Bool `[n, V]`: which tokens could be drawn. An empty set is the full vocabulary."""
    counts = np.array([len(ids) for ids in candidates])
    rows = torch.from_numpy(np.repeat(np.arange(len(candidates)), counts)).to(targets.device)
    ids = torch.from_numpy(np.fromiter(chain.from_iterable(candidates), np.int64)).to(targets.device)
    kept = torch.from_numpy(counts == 0).to(targets.device)[:, None].repeat(1, logits.shape[1])
    kept[rows, ids] = True
    if not bool(kept.gather(1, targets[:, None]).all()):
        raise ModelError(
            "a trained token is not in its own candidate set, so it could not have been sampled; the engine's sampling "
            "masks belong to other tokens: generate the group again"
        )
    return kept


@dataclass(frozen=True, slots=True)
class _Read:
    """What a tile's logits say of its targets, `[n]`."""

    logprobs: Tensor
    entropy: Tensor
    rest: Tensor
    """Logsumexp of all tokens but the target."""


def _read(logits: Tensor, target: Tensor) -> _Read:
    """`logits` `[n, V]` are used up; `target` is `[n, 1]`."""
    own = logits.gather(1, target)[:, 0]
    highest = logits.scatter_(1, target, LEFT_OUT).amax(-1)
    below = logits.sub_(highest[:, None])
    weights = below.exp()
    total = weights.sum(-1)
    rest = highest + total.log()
    entropy_of_rest = total.log() - torch.einsum("nv,nv->n", weights, below) / total
    logprobs, log_rest = -softplus(rest - own), -softplus(own - rest)
    share = log_rest.exp()
    entropy = share * (entropy_of_rest - log_rest) - logprobs.exp() * logprobs
    return _Read(logprobs, entropy, rest)


class _TiledHead(torch.autograd.Function):
    """Hidden states `[N, H]` to log-probs and entropy `[N]`, one tile of logits at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tiles: _Tiles) -> tuple[Tensor, Tensor]:
        count = len(tiles.targets)
        kind = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, rest = (torch.empty(count, dtype=kind, device=hidden.device) for _ in range(3))
        for tile in tiles.slices():
            read = _read(tiles.logits(hidden, tile), tiles.targets[tile, None])
            logprobs[tile], entropy[tile], rest[tile] = read.logprobs, read.entropy, read.rest
        ctx.save_for_backward(hidden, weight, bias, rest)
        ctx.tiles = tiles
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, rest = ctx.saved_tensors
        tiles: _Tiles = ctx.tiles
        into_hidden = torch.empty_like(hidden)
        into_weight = torch.zeros_like(weight, dtype=rest.dtype) if ctx.needs_input_grad[1] else None
        into_bias = None if bias is None else torch.zeros_like(bias, dtype=rest.dtype)
        for tile in tiles.slices():
            logits = tiles.logits(hidden, tile)
            slope = tiles.head.slope(logits)
            target = tiles.targets[tile, None]
            other = torch.sigmoid(rest[tile, None] - logits.gather(1, target)) * grads[0][tile, None]
            grad = logits.scatter_(1, target, LEFT_OUT).sub_(rest[tile, None]).exp_().mul_(-other)
            grad = grad.scatter_(1, target, other).mul_(slope).to(weight.dtype)
            into_hidden[tile] = grad @ weight
            if into_weight is not None:
                into_weight += grad.t() @ hidden[tile]
            if into_bias is not None:
                into_bias += grad.sum(0)
        summed = (None if total is None else total.to(weight.dtype) for total in (into_weight, into_bias))
        return into_hidden, *summed, None
