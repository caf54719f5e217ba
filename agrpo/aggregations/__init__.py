"""Aggregations: from per-token loss to one number, such that the micro-batches of a step add up to the step's loss.

What divides spans the whole optimizer step (`StepTotals`), so no split into rows or micro-batches changes the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from agrpo.records.tokens import StepTotals, TokenInputs
from agrpo.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


class Aggregation(Protocol):
    """How per-token losses become the step's loss."""

    for_sequences: ClassVar[bool]
    """Whether it is only for losses whose importance ratio is that of a whole sample."""

    def __call__(self, loss: Tensor, tokens: TokenInputs, totals: StepTotals) -> Tensor:
        """This micro-batch's share (scalar) of the step's loss. `loss`: `[N]`."""
        ...


aggregations: Registry[Aggregation] = Registry("agrpo.aggregations")

__all__ = ["Aggregation", "aggregations"]
