"""Packing: which samples share a row, and what the row looks like to the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.registry import Registry


class Packing(Protocol):
    """A layout. Placement and layout are apart, so that a recorded placement can be laid out again."""

    def place(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        """Rows of sample numbers, none above `budget` tokens; deterministic. No length may exceed the budget."""
        ...

    def lay_out(self, samples: Sequence[Sample]) -> Row:
        """One row holding these samples."""
        ...


packings: Registry[Packing] = Registry("agrpo.packing")

__all__ = ["Packing", "packings"]
