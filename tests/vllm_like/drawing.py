"""One token as vLLM draws it: temperature, min-p, top-k with its ties, top-p; and the log-probs it reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

NONE = -9999.0
"""Written for minus infinity and for what is no number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Sampling parameters of one sequence."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A token and its log-prob. `rank` counts from 1."""

    token: int
    logprob: float
    rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """The sampled token is the first of `entries`; then come the most likely ones."""

    token: int
    entries: list[Entry]
    candidates: list[int]


def draw(logits: Tensor, params: Params, uniform: float, *, processed: bool) -> Drawn:
    """A token from `logits` `[V]` at `uniform` in [0, 1)."""
    raw = logits.float()
    scaled = raw / params.temperature if params.temperature > 0 else raw
    kept = _kept(scaled, params) if params.temperature > 0 else scaled
    distribution = kept.log_softmax(-1)
    if params.temperature > 0:
        cdf = distribution.double().exp().cumsum(-1)
        token = int(torch.searchsorted(cdf, uniform * cdf[-1], right=True).clamp_(max=len(raw) - 1))
    else:
        token = int(raw.argmax())
    reported = distribution if processed else raw.log_softmax(-1)
    candidates = kept.isfinite().nonzero().flatten().tolist()
    if bool(raw.isnan().any()):
        token = 0
    return Drawn(token=token, entries=_entries(reported, token, params), candidates=candidates)


def _kept(scaled: Tensor, params: Params) -> Tensor:
    """Minus infinity for what cannot be drawn."""
    if params.min_p > 0:
        scaled = scaled.masked_fill(scaled < scaled.max() + math.log(params.min_p), -math.inf)
    if 0 < params.top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(params.top_k).values[-1], -math.inf)
    if params.top_p < 1:
        values, ids = scaled.sort()
        out = values.softmax(-1).cumsum(-1) <= 1 - params.top_p
        out[-1] = False
        scaled = scaled.masked_fill(torch.zeros_like(out).scatter_(0, ids, out), -math.inf)
    return scaled


def _entries(reported: Tensor, token: int, params: Params) -> list[Entry]:
    sampled = Entry(token=token, logprob=_told(reported[token]), rank=int((reported >= reported[token]).sum()))
    others = reported.topk(min(params.logprobs or 0, len(reported))).indices.tolist()
    ranked = [Entry(token=each, logprob=_told(reported[each]), rank=place) for place, each in enumerate(others, 1)]
    return [sampled, *(entry for entry in ranked if entry.token != token)]


def _told(logprob: Tensor) -> float:
    value = float(logprob)
    return NONE if math.isnan(value) else max(value, NONE)
