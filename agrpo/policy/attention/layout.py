"""How attention reads a row: its segments, whose paths they continue, and which of them one call serves.

A row is a forest of tokens in depth-first order, each chain before its branches. A segment is a chain between two forks.
Its queries see the path from the root to the segment, and the segment itself up to their own place. Of a row of whole
samples every sample is one segment, and nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from agrpo.errors import ModelError

MOST_PADDING = 2048
"""Pairs of a query and a key that padding may add to a call for segments to share it; a call costs about as much as these."""
MOST_QUERIES = 512
"""Of a segment that a call with a band reads: the band has as many rows, and each a column for every key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Chains of a row between its forks, `S` of them, in the row's order. All int64 `[S]`."""

    starts: np.ndarray
    """Row position of the first token."""
    lengths: np.ndarray
    parents: np.ndarray
    """Which segment it continues; -1 for a root."""
    depths: np.ndarray
    """How many tokens its path has before it."""

    def __len__(self) -> int:
        return len(self.starts)

    def paths(self, members: np.ndarray, lengths: np.ndarray) -> Paths:
        """The paths of these segments, each segment padded to its length of `lengths` by repeating its last token."""
        owner, place = _spread(self.depths[members] + lengths)
        place -= self.depths[members][owner]
        owner = members[owner]
        is_own = place >= 0
        histories, ends = self._histories()
        tokens = np.empty(len(place), np.int64)
        tokens[is_own] = (self.starts[owner] + np.minimum(place, self.lengths[owner] - 1))[is_own]
        tokens[~is_own] = histories[(ends[self.parents[owner]] + place)[~is_own]]
        return Paths(tokens, is_own)

    def _histories(self) -> tuple[np.ndarray, np.ndarray]:
        """The paths of all segments that others continue, one after another, and where each segment's ends."""
        whole: dict[int, np.ndarray] = {}
        ends, total = np.zeros(len(self), np.int64), 0
        for number in np.unique(self.parents[self.parents >= 0]).tolist():
            start, parent = int(self.starts[number]), int(self.parents[number])
            own = np.arange(start, start + int(self.lengths[number]))
            whole[number] = own if parent < 0 else np.concatenate([whole[parent], own])
            total += len(whole[number])
            ends[number] = total
        return np.concatenate([np.empty(0, np.int64), *whole.values()]), ends


@dataclass(frozen=True, slots=True)
class Paths:
    """Row positions on the paths of some segments, one path after another."""

    tokens: np.ndarray
    """int64."""
    is_own: np.ndarray
    """Which of them are the segment's own, its padding among them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Segments that one call reads, padded at their ends to one length."""

    count: int
    length: int
    """Queries of each."""
    depth: int
    """Keys of each before its first query."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some queries of every segment of a batch, one after another, and all the keys that they see."""

    first_query: int
    first_key: int
    shape: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The calls that read a row, and what is gathered for them. Padding repeats a segment's last token."""

    batches: Sequence[Batch]
    queries: Tensor | None
    """int64: row position of each query, batch after batch; None where that is the row's own order."""
    keys: Tensor | None
    """int64: row position of each key, batch after batch; None where keys are the queries' tokens."""
    outputs: Tensor | None
    """int64 `[T]`: where each row position's output is found; None where that is the row's own order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The same segments, one after another and unpadded, as kernels for sequences of many lengths read them."""

    keys: Tensor | None
    """int64: row positions on the paths of all segments; None where a row holds whole samples."""
    queries_until: Tensor
    """int32 `[S + 1]`: where each segment's queries begin, and the end."""
    keys_until: Tensor
    """int32 `[S + 1]`: where each path begins in `keys`, and the end."""
    longest_segment: int
    longest_path: int


class Layout:
    """What a row's `parents` mean to its layers. Made once a row; each layer reads it."""

    def __init__(self, parents: np.ndarray, device: torch.device | str = "cpu") -> None:
        """`parents`: as in `Row`. Raises `ModelError` where they are no forest in depth-first order."""
        self.parents = parents
        self.device = torch.device(device)
        self.segments = segments_of(parents)
        self._bands: dict[tuple[torch.dtype, int | None], Tensor] = {}

    @cached_property
    def shares(self) -> bool:
        """Whether samples share tokens."""
        return bool((self.segments.parents >= 0).any())

    @cached_property
    def plan(self) -> Plan:
        """As calls of many segments each."""
        if not self.shares:
            return Plan(batches=_runs(self.segments.lengths), queries=None, keys=None, outputs=None)
        return self._gathered(_batches(self.segments))

    @cached_property
    def lengths(self) -> Lengths:
        """As one call of a kernel that takes many lengths."""
        segments, everyone = self.segments, np.arange(len(self.segments))
        lasts = segments.depths + segments.lengths
        return Lengths(
            keys=self._moved(segments.paths(everyone, segments.lengths).tokens) if self.shares else None,
            queries_until=self._moved(_bounds(segments.lengths).astype(np.int32)),
            keys_until=self._moved(_bounds(lasts if self.shares else segments.lengths).astype(np.int32)),
            longest_segment=int(segments.lengths.max()),
            longest_path=int(lasts.max()),
        )

    def blocks(self, batch: Batch, window: int | None) -> Iterator[Block]:
        """What one call each reads of a batch: all of it, or as many queries as a band may have.

        `window`: how many tokens a query sees, itself among them.
        """
        step = MOST_QUERIES if _needs_band(batch, window) else batch.length
        for query in range(0, batch.length, step):
            length, before = min(step, batch.length - query), batch.depth + query
            key = 0 if window is None else max(0, before - window + 1)
            yield Block(query, key, Batch(batch.count, length, before - key))

    def band(self, block: Batch, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores of a block, `[length, depth + length]`: 0, or minus infinity where a key is unseen.

        None where every key is seen, or where plain causality says it.
        """
        if not _needs_band(block, window):
            return None
        whole = self._whole_band(window, dtype)
        deepest = whole.shape[1] - whole.shape[0]
        band = whole[: block.length, deepest - block.depth : deepest + block.length]
        # GPU kernels read a mask only at aligned addresses.
        return band.contiguous() if band.is_cuda else band

    def _whole_band(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """The band that holds every block's: columns count from the deepest one's first key."""
        if (dtype, window) not in self._bands:
            blocks = [block.shape for batch in self.plan.batches for block in self.blocks(batch, window)]
            needing = [shape for shape in blocks if _needs_band(shape, window)]
            length, depth = max(shape.length for shape in needing), max(shape.depth for shape in needing)
            seen = torch.ones(length, depth + length, dtype=torch.bool, device=self.device).tril(depth)
            if window is not None:
                seen = seen.triu(depth - window + 1)
            band = torch.zeros(length, depth + length, dtype=dtype, device=self.device)
            self._bands[dtype, window] = band.masked_fill_(~seen, -torch.inf)
        return self._bands[dtype, window]

    def _gathered(self, batches: Sequence[np.ndarray]) -> Plan:
        segments, members = self.segments, np.concatenate(batches)
        shapes = [
            Batch(len(batch), int(segments.lengths[batch].max()), int(segments.depths[batch[0]])) for batch in batches
        ]
        lengths = np.repeat([shape.length for shape in shapes], [shape.count for shape in shapes])
        paths = segments.paths(members, lengths)
        queries = paths.tokens[paths.is_own]
        owner, place = _spread(lengths)
        unpadded = place < segments.lengths[members][owner]
        outputs = np.empty(len(self.parents), np.int64)
        outputs[queries[unpadded]] = np.flatnonzero(unpadded)
        in_order = np.array_equal(queries, np.arange(len(self.parents)))
        return Plan(
            batches=shapes,
            queries=None if in_order else self._moved(queries),
            keys=self._moved(paths.tokens),
            outputs=None if in_order else self._moved(outputs),
        )

    def _moved(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def segments_of(parents: np.ndarray) -> Segments:
    """The segments of a row. `parents`: as in `Row`. Raises `ModelError` where they are no forest in depth-first order."""
    places = np.arange(len(parents))
    if not len(parents) or (parents >= places).any() or (parents < -1).any():
        raise _out_of_order("each token must follow an earlier one, or none")
    children = np.bincount(parents[parents >= 0], minlength=len(parents))
    starts = np.flatnonzero((parents != places - 1) | (parents < 0) | (children[parents] > 1))
    owner = np.searchsorted(starts, parents[starts], side="right") - 1
    lengths = np.diff(starts, append=len(parents))
    depths = np.zeros(len(starts), np.int64)
    open_path: list[int] = []
    for number, parent in enumerate(owner.tolist()):
        while open_path and open_path[-1] != parent:
            open_path.pop()
        if parent >= 0:
            if not open_path:
                raise _out_of_order(f"the token at {starts[number]} continues a branch that had ended")
            depths[number] = depths[parent] + lengths[parent]
        open_path.append(number)
    return Segments(starts=starts, lengths=lengths, parents=owner, depths=depths)


def _out_of_order(reason: str) -> ModelError:
    return ModelError(
        f"a row's parents are no forest in depth-first order: {reason}. The row's packing is at fault; choose another "
        "packing.name"
    )


def _runs(lengths: np.ndarray) -> list[Batch]:
    """Samples of equal length that lie side by side."""
    firsts = np.flatnonzero(np.diff(lengths, prepend=0))
    counts = np.diff(firsts, append=len(lengths))
    return [Batch(int(count), int(lengths[at]), 0) for at, count in zip(firsts, counts, strict=True)]


def _batches(segments: Segments) -> list[np.ndarray]:
    """Numbers of the segments that share a call: of one depth, and of nearly one length."""
    order = np.lexsort((-segments.lengths, segments.depths))
    cuts: list[int] = []
    depth, longest, padding = -1, 0, 0
    for place, number in enumerate(order.tolist()):
        length = int(segments.lengths[number])
        padding += (longest - length) * (depth + longest)
        if segments.depths[number] != depth or padding > MOST_PADDING:
            depth, longest, padding = int(segments.depths[number]), length, 0
            cuts.append(place)
    batches = [np.sort(order[start:end]) for start, end in pairwise([*cuts, len(order)])]
    return sorted(batches, key=lambda members: int(members[0]))


def _needs_band(shape: Batch, window: int | None) -> bool:
    """Whether neither plain causality nor seeing every key is right for it."""
    if window is not None and shape.depth + shape.length > window:
        return True
    return shape.depth > 0 and shape.length > 1


def _bounds(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def _spread(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of stretches of these lengths, one after another: which stretch each item is in, and its place there."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]
