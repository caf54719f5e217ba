"""SAPO: a smooth gate in place of a clip. Soft Adaptive Policy Optimization, arXiv:2511.20347."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from agrpo.losses.terms.ratio import ratio_of
from agrpo.records.tokens import TokenInputs, TokenLoss
from agrpo.registry import part

Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@part
class Sapo:
    """`-f(r) A`, `f(r) = 4 / tau x sigmoid(tau (r - 1))`: its slope is 1 at `r = 1`, and falls off to both sides."""

    temperature_positive: Temperature = 1.0
    """`tau` where the advantage is positive. Larger: the slope falls off faster. Unitless."""
    temperature_negative: Temperature = 1.05
    """`tau` elsewhere."""
    level: Literal["token", "sequence"] = "token"
    """`sequence`: every token has its sample's ratio, the geometric mean of its tokens'."""

    num_top: ClassVar[int] = 0
    corrects_itself: ClassVar[bool] = False

    def __call__(self, tokens: TokenInputs) -> TokenLoss:
        """Per-token loss (G-152). Measures: `importance_ratio`, and whether a token is `masked`."""
        ratio = ratio_of(tokens, self.level)
        positive = tokens.advantages > 0
        temperature = tokens.advantages.new_full(positive.shape, self.temperature_negative)
        temperature = temperature.masked_fill(positive, self.temperature_positive)
        unknown = ratio.detach().isnan()
        gate = 4 / temperature * (temperature * (ratio - 1)).sigmoid()
        measures = {"importance_ratio": ratio.detach(), "masked": unknown}
        return TokenLoss(loss=(-gate * tokens.advantages).where(~unknown, 0.0), measures=measures)
