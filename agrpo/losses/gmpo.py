"""GMPO: the geometric mean of a sample's ratios, each clipped before. arXiv:2507.20673."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from agrpo.losses.terms.ratio import log_ratio
from agrpo.losses.terms.sequences import mean_over_sample
from agrpo.records.tokens import TokenInputs, TokenLoss
from agrpo.registry import part

if TYPE_CHECKING:
    from torch import Tensor


@part
class Gmpo:
    """`-exp(mean of m) A` for every token of a sample, with `m = min(log r, epsilon)` where `A > 0`, else `max(log r, -epsilon)`.

    The mean is over the sample's tokens that have a policy term, and they alone share its loss.
    """

    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.4
    """How far a token's log-ratio counts, in nats: 0.4 lets ratios go from 0.67 to 1.49."""

    num_top: ClassVar[int] = 0
    corrects_itself: ClassVar[bool] = False
    level: ClassVar[Literal["token"]] = "token"

    def __call__(self, tokens: TokenInputs) -> TokenLoss:
        """Per-token loss. Measures: `importance_ratio`, and whether a token is `masked`, `clipped_low`, `clipped_high`."""
        logs = log_ratio(tokens.logprobs, tokens.old)
        unknown = logs.detach().isnan()
        positive, negative = tokens.advantages > 0, tokens.advantages < 0
        clipped = logs.clamp(max=self.epsilon).where(positive, logs.clamp(min=-self.epsilon))
        left_out = unknown if tokens.left_out is None else unknown | tokens.left_out
        share = _share_kept(~left_out, tokens)
        mean = mean_over_sample(clipped.where(~left_out, 0.0), tokens) / share
        measured = logs.detach()
        measures = {
            "importance_ratio": measured.exp(),
            "masked": unknown,
            "clipped_low": (measured < -self.epsilon) & negative,
            "clipped_high": (measured > self.epsilon) & positive,
        }
        return TokenLoss(loss=(-mean.exp() * tokens.advantages / share).where(~left_out, 0.0), measures=measures)


def _share_kept(kept: Tensor, tokens: TokenInputs) -> Tensor:
    """`[N]`: the share of the token's sample that is kept; 1 where nothing is."""
    share = mean_over_sample(kept.to(tokens.logprobs.dtype), tokens)
    return share.where(share > 0, 1.0)
