"""Mean over a sample's tokens, then over the step's samples: every sample weighs the same (`grpo`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agrpo.records.tokens import StepTotals, TokenInputs
from agrpo.registry import part

if TYPE_CHECKING:
    from torch import Tensor


@part
class SequenceMean:
    """Sum over samples of their token mean / samples of the step. A sample lies whole in one micro-batch."""

    for_sequences: ClassVar[bool] = False

    def __call__(self, loss: Tensor, tokens: TokenInputs, totals: StepTotals) -> Tensor:
        """This micro-batch's share; 0 where the step trains nothing."""
        lengths = tokens.sample.bincount(minlength=tokens.num_samples)
        return (loss / lengths[tokens.sample]).sum() / max(totals.num_samples, 1)
