"""The clipped objective of PPO and GRPO, with ratios out of a band left out.

Schulman et al., arXiv:1707.06347; Shao et al., arXiv:2402.03300; an upper width of its own: DAPO, arXiv:2503.14476; a bound on
the ratio for both signs: INTELLECT-2, arXiv:2505.07291; ratios of whole sequences: GSPO, arXiv:2507.18071.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from agrpo.losses.terms.ratio import inside, ratio_of
from agrpo.records.tokens import TokenInputs, TokenLoss
from agrpo.registry import part


@part
class Clip:
    """`-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)` where `importance_min <= r <= importance_max`, else 0."""

    epsilon: Annotated[float, Field(ge=0)] = 0.2
    """How far below 1 a ratio still counts where the advantage is negative. Unitless; from 1 on there is no lower end."""
    epsilon_high: Annotated[float, Field(ge=0)] | None = None
    """How far above 1 it counts where the advantage is positive. None: `epsilon`."""
    delta: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Bound of the ratio for both signs, so that a negative advantage cannot make a loss without end. None: there is none."""
    level: Literal["token", "sequence"] = "token"
    """`sequence`: every token has its sample's ratio, the geometric mean of its tokens' (GSPO)."""
    importance_min: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A token whose ratio is lower leaves the loss. 0 keeps all."""
    importance_max: Annotated[float, Field(ge=1)] = 5.0
    """A token whose ratio is higher leaves the loss. inf keeps all."""

    num_top: ClassVar[int] = 0
    corrects_itself: ClassVar[bool] = False

    def __call__(self, tokens: TokenInputs) -> TokenLoss:
        """Per-token loss. Measures: `importance_ratio`, and whether a token is `masked`, `clipped_low`, `clipped_high`."""
        low, high = 1 - self.epsilon, 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)
        advantages = tokens.advantages
        ratio = ratio_of(tokens, self.level)
        measured = ratio.detach()
        kept = inside(measured, self.importance_min, self.importance_max)
        bounded = ratio if self.delta is None else ratio.clamp(max=self.delta)
        objective = (bounded * advantages).minimum(ratio.clamp(low, high) * advantages)
        measures = {
            "importance_ratio": measured,
            "masked": ~kept,
            "clipped_low": (measured < low) & (advantages < 0),
            "clipped_high": (measured > high) & (advantages > 0),
        }
        return TokenLoss(loss=(-objective).where(kept, 0.0), measures=measures)
