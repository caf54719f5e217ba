"""From logits to tokens: temperature, then top-k, top-p and min-p, then the inverse CDF at a given uniform."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from agrpo.errors import EngineError
from agrpo.records.sampling import Sampling
from agrpo.records.top_tokens import NO_TOKEN, TopTokens

CHUNK_NUMBERS = 2**23
"""Logits handled at once: bounds the float64 copies of a large vocabulary to some 200 MB."""


@dataclass(slots=True)
class Drawn:
    """One token per row. `top` and `candidates` stay empty where no row asks for them."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    """Of the token under the distribution it was drawn from."""
    top: TopTokens = field(default_factory=lambda: TopTokens.joined([]))
    """As many of the most likely tokens as the row asks for; none that cannot be drawn."""
    candidates: list[list[int]] = field(default_factory=list[list[int]])
    """Ids that could be drawn, ascending; empty for a row that truncates nothing."""


class Sampler:
    """The distributions of a batch: one `Sampling` per row."""

    def __init__(self, settings: Sequence[Sampling]) -> None:
        self._num_top = [each.num_sampler_logprobs for each in settings]
        self._kept_of = [each.top_k or None for each in settings if each.truncated]
        self._temperature = _column([each.temperature for each in settings])
        self._top_k = _column([each.top_k or torch.iinfo(torch.long).max for each in settings], torch.long)
        # 1.0 keeps all, even what lies beyond a cumulative sum that was rounded up to 1.
        self._top_p = _column([each.top_p if each.top_p < 1.0 else math.inf for each in settings], torch.float64)
        self._log_min_p = _column([each.min_p for each in settings]).log()
        self._truncated = _column([each.truncated for each in settings], torch.bool)

    def draw(self, logits: Tensor, uniforms: Sequence[float]) -> Drawn:
        """One token per row of `logits` `[S, V]`, at `uniforms` in [0, 1). Raises `EngineError` for NaN logits."""
        drawn = Drawn()
        points = _column(uniforms, torch.float64)
        rows_at_once = max(1, CHUNK_NUMBERS // logits.shape[1])
        for first in range(0, len(logits), rows_at_once):
            rows = slice(first, first + rows_at_once)
            self._draw_rows(drawn, self._logprobs(logits[rows], rows), points[rows], rows)
        return drawn

    def _logprobs(self, logits: Tensor, rows: slice) -> Tensor:
        """The processed distribution in fp32; -inf for what cannot be drawn."""
        scaled = logits.float() / self._temperature[rows]
        if self._kept_of:
            scaled = scaled.masked_fill(~self._kept(scaled, rows), -math.inf)
        return scaled.log_softmax(-1)

    def _kept(self, scaled: Tensor, rows: slice) -> Tensor:
        """`[S, V]`: which tokens each row may draw."""
        vocabulary = scaled.shape[1]
        most_kept = min(vocabulary, max(top_k or vocabulary for top_k in self._kept_of))
        values, ids = scaled.topk(most_kept, dim=-1)
        kept = torch.arange(most_kept) < self._top_k[rows]
        probs = values.double().masked_fill(~kept, -math.inf).softmax(-1)
        kept &= probs.cumsum(-1) - probs < self._top_p[rows]
        kept &= values >= values[:, :1] + self._log_min_p[rows]
        return torch.zeros_like(scaled, dtype=torch.bool).scatter_(1, ids, kept) | ~self._truncated[rows]

    def _draw_rows(self, drawn: Drawn, logprobs: Tensor, points: Tensor, rows: slice) -> None:
        cdf = logprobs.double().exp_().cumsum(-1)
        ids = torch.searchsorted(cdf, points * cdf[:, -1:], right=True).clamp_(max=cdf.shape[1] - 1)
        chosen = logprobs.gather(1, ids).squeeze(1)
        if not bool(chosen.isfinite().all()):
            raise EngineError(
                "the model gives NaN or infinite logits: its weights are broken; look at the last steps' losses"
            )
        drawn.ids += ids.squeeze(1).tolist()
        drawn.logprobs += chosen.tolist()
        if any(self._num_top):
            found = _most_likely(logprobs, self._num_top[rows])
            drawn.top = TopTokens.joined([drawn.top, found]) if len(drawn.top) else found
        if self._kept_of:
            drawn.candidates += _ids_by_row(logprobs.isfinite() & self._truncated[rows])


def _most_likely(logprobs: Tensor, counts: Sequence[int]) -> TopTokens:
    values, ids = logprobs.topk(min(max(counts), logprobs.shape[1]), dim=-1)
    kept = (torch.arange(ids.shape[1]) < _column(counts, torch.long)) & (values > -math.inf)
    ids, values = ids.masked_fill(~kept, NO_TOKEN), values.masked_fill(~kept, -math.inf)
    return TopTokens(ids.to(torch.int32).numpy(), values.numpy())


def _ids_by_row(chosen: Tensor) -> list[list[int]]:
    ids = iter(chosen.nonzero()[:, 1].tolist())
    return [list(islice(ids, count)) for count in chosen.sum(1).tolist()]


def _column(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype).unsqueeze(1)
