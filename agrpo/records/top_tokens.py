"""Top tokens: the sampler's most likely tokens at each of some places, kept as two padded arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, overload

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

NO_TOKEN = -1
"""Stands where a place has fewer tokens than the array is wide; its log-prob is minus infinity."""


@dataclass(frozen=True, slots=True, eq=False)
class TopTokens(Sequence[dict[int, float]]):
    """`N` places with up to `K` tokens each. Reads as a list of `{token id: log-prob}`."""

    ids: np.ndarray
    """int32 `[N, K]`, each id once a place; `NO_TOKEN` where there are fewer."""
    logprobs: np.ndarray
    """float32 `[N, K]`, nats."""

    @classmethod
    def of(cls, places: Sequence[dict[int, float]]) -> TopTokens:
        """These places as arrays."""
        if isinstance(places, TopTokens):
            return places
        counts = np.fromiter(map(len, places), np.int64, len(places))
        total = int(counts.sum())
        ids = np.fromiter((token for place in places for token in place), np.int32, total)
        logprobs = np.fromiter((value for place in places for value in place.values()), np.float32, total)
        return cls.padded(counts, ids, logprobs)

    @classmethod
    def of_lists(cls, ids: pa.ListArray, logprobs: pa.ListArray) -> Self:
        """Places as Arrow holds them: a list of ids each, and as many log-probs."""
        counts = ids.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return cls.padded(counts, *(lists.flatten().to_numpy(zero_copy_only=False) for lists in (ids, logprobs)))

    @classmethod
    def padded(cls, counts: np.ndarray, ids: np.ndarray, logprobs: np.ndarray) -> Self:
        """Places of `counts` tokens, whose ids and log-probs follow one another."""
        width = int(counts.max(initial=0))
        kept = np.arange(width) < counts[:, None]
        made = cls(np.full(kept.shape, NO_TOKEN, np.int32), np.full(kept.shape, -np.inf, np.float32))
        made.ids[kept], made.logprobs[kept] = ids, logprobs
        return made

    @classmethod
    def joined(cls, parts: Sequence[TopTokens]) -> Self:
        """The places of all parts, one part after another."""
        width = max((part.ids.shape[1] for part in parts), default=0)
        none = cls(np.zeros((0, width), np.int32), np.zeros((0, width), np.float32))
        wide = [none, *(part.widened(width) for part in parts)]
        return cls(np.concatenate([part.ids for part in wide]), np.concatenate([part.logprobs for part in wide]))

    def widened(self, width: int) -> TopTokens:
        """The same places in arrays of at least this width."""
        if self.ids.shape[1] >= width:
            return self
        missing = ((0, 0), (0, width - self.ids.shape[1]))
        return TopTokens(
            np.pad(self.ids, missing, constant_values=NO_TOKEN), np.pad(self.logprobs, missing, constant_values=-np.inf)
        )

    def with_sampled(self, tokens: np.ndarray, logprobs: np.ndarray) -> TopTokens:
        """One column more: the token that was sampled, `[N]`, where it is not among the others, and else `NO_TOKEN`."""
        missing = ~(self.ids == tokens[:, None]).any(1)
        last = np.where(missing, tokens, NO_TOKEN).astype(np.int32)
        values = np.where(missing, logprobs, -np.inf).astype(np.float32)
        return TopTokens(np.column_stack([self.ids, last]), np.column_stack([self.logprobs, values]))

    def chosen(self, kept: np.ndarray | list[int]) -> TopTokens:
        """The places that `kept`, bool `[N]` or indices, says."""
        return TopTokens(self.ids[kept], self.logprobs[kept])

    def lists(self) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and log-probs of each place, without what pads them."""
        kept = self.ids != NO_TOKEN
        if kept.all():
            return self.ids.tolist(), self.logprobs.tolist()
        each = zip(self.ids, self.logprobs, kept, strict=True)
        lists = [(ids[own].tolist(), logprobs[own].tolist()) for ids, logprobs, own in each]
        return [ids for ids, _ in lists], [logprobs for _, logprobs in lists]

    @property
    def counts(self) -> np.ndarray:
        """Tokens of each place, int64 `[N]`."""
        return (self.ids != NO_TOKEN).sum(1)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> dict[int, float]: ...
    @overload
    def __getitem__(self, index: slice) -> TopTokens: ...
    def __getitem__(self, index: int | slice) -> dict[int, float] | TopTokens:
        if isinstance(index, slice):
            return TopTokens(self.ids[index], self.logprobs[index])
        kept = self.ids[index] != NO_TOKEN
        return dict(zip(self.ids[index][kept].tolist(), self.logprobs[index][kept].tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        """Whether a list, or another of these, says the same of the same number of places."""
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(own == given for own, given in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]
