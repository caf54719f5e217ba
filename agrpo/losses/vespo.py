"""VESPO: whole sequences are weighed by how likely they still are, softly. arXiv:2602.10693."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from agrpo.losses.terms.ratio import LARGEST_LOG_RATIO, log_ratio, ratio_of
from agrpo.losses.terms.sequences import sum_over_sample
from agrpo.records.tokens import TokenInputs, TokenLoss
from agrpo.registry import part

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST_LOG_WEIGHT = math.log(1e-8)
"""Weights are cut here from below, of a sequence and of a token's correction: what is masked there has none."""
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@part
class Vespo:
    """`-phi(W) A log pi`, `phi(W) = W^k exp(lambda (1 - W))`, with `W` the product of all ratios of the sample.

    `phi` is 1 at `W = 1` and carries no gradient. A correction enters through `W` alone, whose ratios are then those of the
    policy to the sampler, as far as it lets them.
    """

    k_positive: Amount = 2.0
    """`k` where the advantage is at least 0. Larger: unlikely sequences weigh less. Unitless, as are the others."""
    lambda_positive: Amount = 3.0
    """`lambda` there. Larger: sequences that became likelier weigh less."""
    k_negative: Amount = 3.0
    """`k` where the advantage is negative."""
    lambda_negative: Amount = 2.0
    """`lambda` there."""

    num_top: ClassVar[int] = 0
    corrects_itself: ClassVar[bool] = True
    level: ClassVar[Literal["token"]] = "token"

    def __call__(self, tokens: TokenInputs) -> TokenLoss:
        """Per-token loss (G-155 to G-157). Measures: `importance_ratio` of the token, `masked`, and `phi` of its sample."""
        logs = _log_weights(tokens)
        positive = tokens.advantages >= 0
        k, rate = (
            logs.new_full(logs.shape, below).masked_fill(positive, above)
            for above, below in (
                (self.k_positive, self.k_negative),
                (self.lambda_positive, self.lambda_negative),
            )
        )
        phi = (k * logs + rate * (1 - logs.exp())).exp()
        measured = ratio_of(tokens).detach()
        measures = {"importance_ratio": measured, "masked": measured.isnan(), "phi": phi}
        return TokenLoss(loss=-phi * tokens.advantages * tokens.logprobs, measures=measures)


def _log_weights(tokens: TokenInputs) -> Tensor:
    """`[N]`, no gradient: log of `W` of each token's sample. A token whose ratio is not a number counts as unmoved."""
    each = log_ratio(tokens.logprobs.detach(), tokens.old).nan_to_num(0.0)
    if tokens.correction is not None:
        each = each + tokens.correction.log().clamp(SMALLEST_LOG_WEIGHT, LARGEST_LOG_RATIO)
    return sum_over_sample(each, tokens).clamp(SMALLEST_LOG_WEIGHT, LARGEST_LOG_RATIO)
