"""Reading the output head: log-probs of chosen tokens, without ever holding a row of logits.

It works on a few hundred positions at a time and computes them again in backward. A confident prediction keeps its
digits: `log p = -softplus(rest - z)`, where `rest` is the logsumexp of all other tokens, while `z - logsumexp(z)` rounds
1 - p to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from agrpo.errors import ModelError
from agrpo.policy.head import Head
from agrpo.records.top_tokens import NO_TOKEN

LARGEST_TILE = 2**25
"""Most logits held at once: 128 MiB in fp32."""
LEFT_OUT = -1e30
"""Logit of a token that cannot be drawn. Finite: a set of one token has an empty rest, whose gradient would be nan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What the head says of `N` targets: fp32 (or fp64), over the candidates of each."""

    logprobs: Tensor
    """`[N]`, with gradient."""
    entropy: Tensor
    """`[N]`, nats, of the whole distribution; a gradient only where it was asked for."""
    top_logprobs: Tensor | None = None
    """`[N, K]`, with gradient; minus infinity where a target has fewer ids."""
    log_rest: Tensor | None = None
    """`[N]`: log of the mass on all tokens that are not among the `K`; no gradient."""


def read_targets(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    candidates: list[list[int]] | None,
    *,
    chunk: int,
    top_ids: Tensor | None = None,
    entropy_gradient: bool = False,
) -> Read:
    """Read the head at the hidden states `[N, H]` that predict `targets`, int64 `[N]`.

    `candidates`: as in `Row`. `chunk`: most positions whose logits are held at once. `top_ids`: int64 `[N, K]`, more tokens
    to read, each once a target and the target among them; `NO_TOKEN` where there are fewer.
    """
    ids = targets[:, None] if top_ids is None else top_ids
    # Of every token that is read, all others that are read are added up.
    widest = max(head.weight.shape[0], ids.shape[1] * (ids.shape[1] + 1))
    size = max(1, min(chunk, LARGEST_TILE // widest))
    tiles = _Tiles(
        head=head,
        targets=targets,
        # A filler reads the target once more, and is told nothing of what it reads.
        ids=torch.where(ids == NO_TOKEN, targets[:, None], ids),
        fillers=None if top_ids is None else ids == NO_TOKEN,
        candidates=candidates,
        size=size,
        entropy_gradient=entropy_gradient,
    )
    outputs: Any = _TiledHead.apply(hidden, head.weight, head.bias, tiles)
    logprobs, entropy, log_rest = outputs
    if top_ids is None:
        return Read(logprobs=logprobs[:, 0], entropy=entropy)
    of_target = logprobs.where(ids == targets[:, None], 0.0).sum(1)
    return Read(logprobs=of_target, entropy=entropy, top_logprobs=logprobs, log_rest=log_rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """What the head reads beside tensors that carry a gradient, a tile of positions at a time."""

    head: Head
    targets: Tensor
    ids: Tensor
    """int64 `[N, W]`: the tokens that are read."""
    fillers: Tensor | None
    """Bool `[N, W]`: where `ids` say nothing. None: nowhere."""
    candidates: list[list[int]] | None
    size: int
    entropy_gradient: bool

    def slices(self) -> list[slice]:
        return [slice(start, start + self.size) for start in range(0, len(self.targets), self.size)]

    def logits(self, hidden: Tensor, tile: slice) -> Tensor:
        """`[n, V]`, `LEFT_OUT` where a token is no candidate."""
        logits = self.head.logits(hidden[tile])
        if self.candidates is None:
            return logits
        return logits.where(_drawable(self.candidates[tile], self.targets[tile], logits), LEFT_OUT)

    def own(self, logits: Tensor, tile: slice) -> Tensor:
        """`[n, W]`: logits of the tokens that are read."""
        own = logits.gather(1, self.ids[tile])
        return own if self.fillers is None else own.masked_fill_(self.fillers[tile], LEFT_OUT)

    def write(self, grad: Tensor, into_own: Tensor, tile: slice) -> Tensor:
        """Put the gradient by the tokens that are read, `[n, W]`, into that by all logits."""
        ids = self.ids[tile]
        if self.fillers is not None:
            # A filler writes what its target writes, so that it does not matter who comes last.
            of_target = into_own.where(ids == self.targets[tile, None], 0.0).sum(1, keepdim=True)
            into_own = into_own.where(~self.fillers[tile], of_target)
        return grad.scatter_(1, ids, into_own)


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
class _TileRead:
    """What a tile's logits say."""

    logprobs: Tensor
    """`[n, W]`, of the tokens that are read."""
    entropy: Tensor
    """`[n]`."""
    rest: Tensor
    """`[n]`: logsumexp of all other tokens."""
    log_rest: Tensor
    """`[n]`: log of their mass."""


def _read(logits: Tensor, ids: Tensor, own: Tensor) -> _TileRead:
    """`logits` `[n, V]` are used up; `ids` and their logits `own` are `[n, W]`."""
    highest = logits.scatter_(1, ids, LEFT_OUT).amax(-1)
    below = logits.sub_(highest[:, None])
    weights = below.exp()
    total = weights.sum(-1)
    rest = highest + total.log()
    entropy_of_rest = total.log() - torch.einsum("nv,nv->n", weights, below) / total
    logprobs, log_rest = -softplus(_others(own, rest) - own), -softplus(own.logsumexp(-1) - rest)
    entropy = log_rest.exp() * (entropy_of_rest - log_rest) - (logprobs.exp() * logprobs).sum(-1)
    return _TileRead(logprobs, entropy, rest, log_rest)


def _others(own: Tensor, rest: Tensor) -> Tensor:
    """`[n, W]`: for each token that is read, logsumexp of all tokens but it. A sum, so that no digit is lost."""
    width = own.shape[1]
    if width == 1:
        return rest[:, None]
    every = torch.cat([own, rest[:, None]], 1)[:, None].expand(-1, width, -1)
    itself = torch.eye(width, width + 1, dtype=torch.bool, device=own.device)
    return every.masked_fill(itself, LEFT_OUT).logsumexp(-1)


class _TiledHead(torch.autograd.Function):
    """Hidden states `[N, H]` to log-probs `[N, W]`, entropy `[N]` and log of the rest's mass `[N]`, a tile at a time."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tiles: _Tiles
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = torch.empty(tiles.ids.shape, dtype=kind, device=hidden.device)
        entropy, rest, log_rest = (torch.empty_like(logprobs[:, 0]) for _ in range(3))
        for tile in tiles.slices():
            logits = tiles.logits(hidden, tile)
            read = _read(logits, tiles.ids[tile], tiles.own(logits, tile))
            logprobs[tile], entropy[tile], rest[tile], log_rest[tile] = (
                read.logprobs,
                read.entropy,
                read.rest,
                read.log_rest,
            )
        if tiles.fillers is not None:
            logprobs.masked_fill_(tiles.fillers, -torch.inf)
        ctx.save_for_backward(hidden, weight, bias, rest, entropy if tiles.entropy_gradient else None)
        ctx.tiles = tiles
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(log_rest, *(() if tiles.entropy_gradient else (entropy,)))
        return logprobs, entropy, log_rest

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, rest, entropy = ctx.saved_tensors
        tiles: _Tiles = ctx.tiles
        given = _Given(_known(grads[0], tiles, rest.dtype), grads[1], entropy)
        into_hidden = torch.empty_like(hidden)
        into_weight = torch.zeros_like(weight, dtype=rest.dtype) if ctx.needs_input_grad[1] else None
        into_bias = None if bias is None else torch.zeros_like(bias, dtype=rest.dtype)
        for tile in tiles.slices():
            logits = tiles.logits(hidden, tile)
            slope = tiles.head.slope(logits)
            own = tiles.own(logits, tile)
            into_own = _into_own(own, rest[tile], given.of(tile))
            grad = _into_others(logits.scatter_(1, tiles.ids[tile], LEFT_OUT), own, rest[tile], given.of(tile))
            grad = tiles.write(grad, into_own, tile).mul_(slope).to(weight.dtype)
            into_hidden[tile] = grad @ weight
            if into_weight is not None:
                _add_product(into_weight, grad.t(), hidden[tile])
            if into_bias is not None:
                into_bias += grad.sum(0, dtype=into_bias.dtype)
        summed = (None if total is None else total.to(weight.dtype) for total in (into_weight, into_bias))
        return into_hidden, *summed, None


@dataclass(frozen=True, slots=True)
class _Given:
    """The gradient that came down."""

    logprobs: Tensor
    """`[N, W]`; 0 for fillers."""
    entropy: Tensor | None
    """`[N]`. None: nobody asked for it."""
    value: Tensor | None
    """`[N]`: the entropy itself."""

    def of(self, tile: slice) -> _Given:
        entropy, value = (None if each is None else each[tile, None] for each in (self.entropy, self.value))
        return _Given(self.logprobs[tile], entropy, value)


def _known(grad: Tensor | None, tiles: _Tiles, kind: torch.dtype) -> Tensor:
    if grad is None:
        return torch.zeros(tiles.ids.shape, dtype=kind, device=tiles.ids.device)
    return grad if tiles.fillers is None else grad.masked_fill(tiles.fillers, 0.0)


def _into_own(own: Tensor, rest: Tensor, given: _Given) -> Tensor:
    """Gradient by the logits of the tokens that are read, `[n, W]`.

    That of `log p_k` is `1 - p_k` at k and `-p_j` at any other token j, that of the entropy H is `-p_j (log p_j + H)`.
    """
    others = _others(own, rest)
    complement, logprobs = torch.sigmoid(others - own), -softplus(others - own)
    of_others = given.logprobs @ (1 - torch.eye(own.shape[1], dtype=own.dtype, device=own.device))
    grad = given.logprobs * complement - logprobs.exp() * of_others
    if given.entropy is None or given.value is None:
        return grad
    return grad - given.entropy * logprobs.exp() * (logprobs + given.value)


def _into_others(logits: Tensor, own: Tensor, rest: Tensor, given: _Given) -> Tensor:
    """Gradient by all other logits, `[n, V]`; `logits` are used up, those of tokens that are read were left out."""
    inside = own.logsumexp(-1)
    share = torch.sigmoid(rest - inside)[:, None]
    factor = -given.logprobs.sum(1, keepdim=True) * share
    below = logits.sub_(rest[:, None])
    if given.entropy is None or given.value is None:
        return below.exp_().mul_(factor)
    level = given.value - softplus(inside - rest)[:, None]
    return below.exp() * (factor - given.entropy * share * (below + level))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to `total`, which has more digits where weights are in half precision."""
    if total.is_cuda and total.dtype != left.dtype:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right
