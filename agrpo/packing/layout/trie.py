"""The prefix trie of some samples: every common prefix once, forked exactly where samples part.

Samples in lexicographic order are the trie's branches in DFS pre-order, and how many tokens each shares with the one before
says all about its shape: no node is ever built.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agrpo.packing.layout.terms import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Trie:
    """`S` samples in lexicographic order of their tokens."""

    order: np.ndarray
    """int64 `[S]`: the samples' numbers. Equal samples keep the order they were given in."""
    tokens: list[np.ndarray]
    """int64: the tokens of each, in that order."""
    lengths: np.ndarray
    """int64 `[S]`."""
    shared: np.ndarray
    """int64 `[S]`: tokens that a sample shares with the one before, the longest prefix it shares with any before; 0 first."""

    @property
    def num_tokens(self) -> int:
        """Nodes of the trie: unique tokens."""
        return int((self.lengths - self.shared).sum())


def trie_of(samples: Several[Several[int]]) -> Trie:
    """The trie of these token ids, none negative."""
    tokens = [np.array(sample, np.int64) for sample in samples]
    # Big-endian bytes compare as the ids do, and a prefix comes before what continues it.
    keys = [ids.astype(">i8").tobytes() for ids in tokens]
    order = sorted(range(len(tokens)), key=keys.__getitem__)
    ordered = [tokens[number] for number in order]
    shared = [0, *(_shared(before, ids) for before, ids in pairwise(ordered))]
    return Trie(
        order=np.array(order, np.int64),
        tokens=ordered,
        lengths=np.array([len(ids) for ids in ordered], np.int64),
        shared=np.array(shared[: len(ordered)], np.int64),
    )


def lay_out(trie: Trie) -> Layout:
    """The trie's nodes in DFS pre-order; a token's position is its depth."""
    fresh = trie.lengths - trie.shared
    starts = np.cumsum(fresh) - fresh
    num_tokens = trie.num_tokens
    parents = np.arange(-1, num_tokens - 1)
    places: list[np.ndarray] = [np.zeros(0, np.int64)] * len(trie.order)
    path = np.zeros(0, np.int64)
    for number, start, shared, count in zip(trie.order, starts, trie.shared, fresh, strict=True):
        if count:
            parents[start] = path[shared - 1] if shared else -1
        path = np.concatenate((path[:shared], np.arange(start, start + count)))
        places[number] = path
    return Layout(
        tokens=_joined([ids[shared:] for ids, shared in zip(trie.tokens, trie.shared, strict=True)]),
        positions=np.arange(num_tokens) - np.repeat(starts - trie.shared, fresh),
        parents=parents,
        places=_joined(places),
    )


def pairs(depth: np.ndarray) -> np.ndarray:
    """Pairs of a token and one that it attends to, itself included, along a path of so many tokens."""
    return depth * (depth + 1) // 2


def _shared(one: np.ndarray, other: np.ndarray) -> int:
    common = min(len(one), len(other))
    differing = one[:common] != other[:common]
    return int(differing.argmax()) if differing.any() else common


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
