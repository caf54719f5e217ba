"""A trie's branches in a line: what a row costs that holds any run of them, from sums alone.

A row that holds the samples from `start` to before `end` forwards each of them but for what it shares with the one before;
the first of the row shares nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agrpo.packing.layout.trie import Trie, pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Most that a row may hold."""

    tokens: int
    """Unique tokens."""
    terms: int
    """Loss terms: a trained token that several samples share has one for each."""
    gathered: int
    """Keys (and as many values) that attention gathers: the lengths of all paths from a root to the end of a segment."""


class Line:
    """`S` samples in the order of their trie."""

    def __init__(self, trie: Trie, num_terms: np.ndarray, bounds: Bounds) -> None:
        """`num_terms`: loss terms of each, in that order."""
        self.size = len(trie.lengths)
        self.shared = trie.shared
        self.bounds = bounds
        self._tokens = _Sums(trie.lengths - trie.shared, trie.shared)
        self._terms = _Sums(num_terms, np.zeros_like(num_terms))
        self._gathered = _gathered(trie)
        self._cost = _Sums(pairs(trie.lengths) - pairs(trie.shared), pairs(trie.shared))
        self.num_tokens = trie.num_tokens
        """Of all samples in one row."""
        self.costliest = int(pairs(trie.lengths).max())
        """Attention cost of the costliest sample."""
        self.total_cost = int(self._cost.until[-1])
        """Attention cost of all samples in one row."""
        self._ends = np.minimum.reduce(
            [
                self._tokens.ends(bounds.tokens),
                self._terms.ends(bounds.terms),
                self._gathered.ends(bounds.gathered),
            ]
        )

    def tokens(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Unique tokens of the rows from each start to before its end."""
        return self._tokens.between(starts, ends)

    def cost(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Attention cost of these rows: pairs of a token and one that it attends to."""
        return self._cost.between(starts, ends)

    def ends(self, cost: int | None = None) -> np.ndarray:
        """`[S]`: where the longest row ends that begins at each sample, within the bounds and this attention cost.

        Every sample alone is a row: the caller sees to it that none is beyond the bounds.
        """
        ends = self._ends if cost is None else np.minimum(self._ends, self._cost.ends(cost))
        return np.maximum(ends, np.arange(1, self.size + 1))


class _Sums:
    """A quantity of a row: the sum over its samples, and of the first one what others would have shared."""

    def __init__(self, each: np.ndarray, alone: np.ndarray) -> None:
        """`each`: what a sample adds to the ones before it. `alone`: what it adds more where it is a row's first."""
        self.until = np.concatenate(([0], np.cumsum(each)))
        self.alone = alone

    def between(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        return self.until[ends] - self.until[starts] + self.alone[starts]

    def ends(self, limit: int) -> np.ndarray:
        return np.searchsorted(self.until, self.until[:-1] - self.alone + limit, side="right") - 1


def _gathered(trie: Trie) -> _Sums:
    """Keys gathered, or somewhat more: every fork before a row's first sample counts as one of that row."""
    each = trie.lengths - trie.shared
    alone = np.zeros_like(each)
    forks: list[int] = []
    before = 0
    for place, (length, shared) in enumerate(zip(trie.lengths.tolist(), trie.shared.tolist(), strict=True)):
        while forks and forks[-1] > shared:
            forks.pop()
        if shared < before:  # It parts from the sample before: a segment of its own, and an end where both part.
            each[place] = length
            if shared and shared not in forks[-1:]:
                forks.append(shared)
                each[place] += shared
        alone[place] = length + sum(forks) - each[place]
        before = length
    return _Sums(each, alone)
