"""Sum over tokens divided by a constant, so that long answers are not favoured (`dr_grpo`, arXiv:2503.20783)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agrpo.records.tokens import StepTotals, TokenInputs
from agrpo.registry import part

if TYPE_CHECKING:
    from torch import Tensor


@part
class Constant:
    """Sum over tokens / (samples of the step x `engine.max_completion_length`)."""

    for_sequences: ClassVar[bool] = False

    def __call__(self, loss: Tensor, tokens: TokenInputs, totals: StepTotals) -> Tensor:
        """This micro-batch's share; 0 where the step trains nothing."""
        return loss.sum() / (max(totals.num_samples, 1) * totals.max_completion_length)
