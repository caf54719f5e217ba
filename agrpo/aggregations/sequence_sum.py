"""Sum over a sample's tokens, then mean over the step's samples: no sample is made small for its length (`luspo`, arXiv:2602.05261)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agrpo.records.tokens import StepTotals, TokenInputs
from agrpo.registry import part

if TYPE_CHECKING:
    from torch import Tensor


@part
class SequenceSum:
    """Sum over tokens / samples of the step. It grows with the answers' length, and the gradient's norm with it."""

    for_sequences: ClassVar[bool] = True

    def __call__(self, loss: Tensor, tokens: TokenInputs, totals: StepTotals) -> Tensor:
        """This micro-batch's share; 0 where the step trains nothing."""
        return loss.sum() / max(totals.num_samples, 1)
