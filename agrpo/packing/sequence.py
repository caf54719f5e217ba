"""Whole samples one after another in a row: no padding, and nothing shared between samples."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np

from agrpo.packing.layout.planner import by_rank
from agrpo.packing.layout.terms import Layout, row_of, tokens_of
from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.registry import part


@part
class Sequence:
    """Longest samples first, each into the row whose attention costs least of those that have room.

    A row then holds samples of equal length side by side, which attention can read in one call.
    """

    def place(self, samples: Several[Sample], micro_tokens: int, ranks: int = 1) -> list[list[int]]:
        """Rows of sample numbers, longest first; equal lengths keep their order."""
        lengths = [len(sample.sequence.tokens) for sample in samples]
        too_long = next((number for number, length in enumerate(lengths) if length > micro_tokens), None)
        assert too_long is None, (
            f"sample {too_long} has {lengths[too_long]} tokens, a row holds {micro_tokens}: drop it before placing"
        )
        num_rows = -(-sum(lengths) // micro_tokens)
        while True:
            num_rows += -num_rows % ranks
            rows = _filled(lengths, micro_tokens, num_rows)
            if rows is not None:
                costs = [sum(lengths[number] * (lengths[number] + 1) // 2 for number in row) for row in rows]
                return by_rank([row for row in rows if row], np.array([cost for cost in costs if cost]), ranks)
            num_rows += 1

    def lay_out(self, samples: Several[Sample]) -> Row:
        """The samples' tokens in the order given; each sample is a chain of its own."""
        lengths = np.array([len(sample.sequence.tokens) for sample in samples], np.int64)
        positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = np.arange(len(positions))
        return row_of(
            samples,
            Layout(
                tokens=tokens_of(samples),
                positions=positions,
                parents=np.where(positions == 0, -1, places - 1),
                places=places,
            ),
        )


def _filled(lengths: list[int], micro_tokens: int, num_rows: int) -> list[list[int]] | None:
    """So many rows, some of them empty where there are fewer samples; None: they do not suffice."""
    rows: list[list[int]] = [[] for _ in range(num_rows)]
    room, costs = [micro_tokens] * num_rows, [0] * num_rows
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        open_rows = [row for row in range(num_rows) if room[row] >= length]
        if not open_rows:
            return None
        row = min(open_rows, key=costs.__getitem__)
        rows[row].append(number)
        room[row] -= length
        costs[row] += length * (length + 1) // 2
    return rows
