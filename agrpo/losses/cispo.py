"""CISPO: the importance weight is cut, the gradient never. MiniMax-M1, arXiv:2506.13585; ScaleRL, arXiv:2510.13786."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from agrpo.losses.terms.ratio import ratio_of
from agrpo.records.tokens import TokenInputs, TokenLoss
from agrpo.registry import part


@part
class Cispo:
    """`-w A log pi` with the weight `w = min(r, cap)`, which carries no gradient."""

    cap: Annotated[float, Field(ge=1)] = 5.0
    """Largest ratio that weighs a token. Unitless, and the bound itself: 5 is not 1 + 5. inf cuts none."""
    level: Literal["token", "sequence"] = "token"
    """`sequence`: every token has its sample's ratio, the geometric mean of its tokens'."""

    num_top: ClassVar[int] = 0
    corrects_itself: ClassVar[bool] = False

    def __call__(self, tokens: TokenInputs) -> TokenLoss:
        """Per-token loss. Measures: `importance_ratio`, whether a token is `masked`, and `capped`: cut, with `A > 0` (G-261)."""
        measured = ratio_of(tokens, self.level).detach()
        unknown = measured.isnan()
        weights = measured.where(~unknown, 0.0).clamp(max=self.cap)
        measures = {
            "importance_ratio": measured,
            "masked": unknown,
            "capped": (measured > self.cap) & (tokens.advantages > 0),
        }
        return TokenLoss(loss=-weights * tokens.advantages * tokens.logprobs, measures=measures)
