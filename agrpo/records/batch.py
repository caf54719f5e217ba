"""Rows: the layout the model reads. The loss never sees it: it reads samples, through two gathers.

`parents` says which row position each token follows (a packed row is a forest of token chains), and `index` says at
which row position each trained token was predicted. Padding and packing are invisible beyond this record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from agrpo.records.top_tokens import TopTokens


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one process forwards in one micro-batch. `T` forwarded tokens, `N` trained tokens, `S` samples."""

    tokens: np.ndarray
    """int64 `[T]`."""
    positions: np.ndarray
    """int64 `[T]`: depth of the token in its sample, from 0."""
    parents: np.ndarray
    """int64 `[T]`: row position of the token before, -1 for the first token of a chain."""
    index: np.ndarray
    """int64 `[N]`: row position whose output predicts the trained token."""
    targets: np.ndarray
    """int64 `[N]`: the trained token."""
    sample: np.ndarray
    """int64 `[N]`: which of the row's samples the term belongs to, 0 to S - 1."""
    sampler_logprobs: np.ndarray
    """float32 `[N]`."""
    advantages: np.ndarray
    """float32 `[N]`."""
    num_samples: int
    candidates: list[list[int]] | None = None
    """Candidate ids per trained token, the token itself among them; an empty list, or None for all: the full vocabulary."""
    top: TopTokens | None = None
    """The sampler's most likely tokens per trained token, and in one more column, the last, the trained token itself where
    it is not among them. None where a sample came without."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_trained(self) -> int:
        return len(self.targets)

    def with_a_term(self) -> Row:
        """The row itself; of one that trains nothing, a row whose first output is read once, so that it can be forwarded."""
        import numpy as np

        if self.num_trained:
            return self
        one = np.zeros(1, np.int64)
        return replace(self, index=one, targets=one, candidates=None, top=None)
