"""Packing: which samples share a row, and what the row looks like to the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.registry import Registry


class Packing(Protocol):
    """A layout. Placement and layout are apart, so that a recorded placement can be laid out again."""

    def place(self, samples: Sequence[Sample], micro_tokens: int, ranks: int = 1) -> list[list[int]]:
        """Rows of sample numbers, none above `micro_tokens` forwarded tokens or loss terms; deterministic.

        Row `m * ranks + r` is what rank `r` forwards in micro-batch `m`: every rank has as many rows. Rows are alike in
        attention cost (A-159), the costliest come first, and one is empty only where there are fewer samples than rows.
        No sample may be longer than `micro_tokens`.
        """
        ...

    def lay_out(self, samples: Sequence[Sample]) -> Row:
        """One row holding these samples, its terms in their order; of no sample: one token without a term."""
        ...


packings: Registry[Packing] = Registry("agrpo.packing")

__all__ = ["Packing", "packings"]
