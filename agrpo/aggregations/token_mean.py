"""Mean over the step's trained tokens: every token weighs the same (`dapo`, `bnpo`, and the asynchronous default)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agrpo.records.tokens import StepTotals, TokenInputs
from agrpo.registry import part

if TYPE_CHECKING:
    from torch import Tensor


@part
class TokenMean:
    """Sum over tokens / trained tokens of the step."""

    for_sequences: ClassVar[bool] = False

    def __call__(self, loss: Tensor, tokens: TokenInputs, totals: StepTotals) -> Tensor:
        """This micro-batch's share; 0 where the step trains nothing."""
        return loss.sum() / max(totals.num_tokens, 1)
