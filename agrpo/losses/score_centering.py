"""Score centering: a masked policy gradient from which the sampler's expectation of it is subtracted.

At each token the sampler draws from mu and the policy is pi. A token whose importance ratio r = pi / mu leaves the band is
masked, f(r) = r inside and 0 outside, which biases the expected gradient. What is subtracted is its expectation over mu:

    grad loss = -A ( f(r_o) grad log pi(o) - E_{v ~ mu}[ f(r_v) grad log pi(v) ] )

mu(v) f(r_v) grad log pi(v) is grad pi(v) where r_v lies in the band, and 0 elsewhere: the expectation is the gradient of
the mass of pi that lies in the band. It is summed over the sampler's K most likely tokens and the sampled one. On the rest of
the vocabulary mu is taken as pi rescaled to the mass that mu has left, so all of it shares one ratio. The masses of all
tokens add up to 1, so only tokens that are in the band where the rest is not, or the other way round, contribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from agrpo.errors import RecordError
from agrpo.losses.terms.ratio import inside, log_ratio, ratio_of
from agrpo.records.tokens import TokenInputs, TokenLoss, TopInputs
from agrpo.registry import part

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST_REST = 1e-6
"""Of the sampler's mass that its most likely tokens leave: less is rounding of the reported log-probs."""


@part
class ScoreCentering:
    """`-A (r - M)` where `importance_min <= r <= importance_max`, else `A M`; M: the policy's mass in the band.

    Nothing is clipped: `epsilon` and `epsilon_high` only say which tokens are counted as outside the trust region.
    """

    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """How far below 1 a ratio is not counted as clipped. Unitless."""
    epsilon_high: Annotated[float, Field(ge=0)] | None = None
    """How far above 1. None: `epsilon`."""
    importance_min: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A token whose ratio is lower is masked. 0 keeps all."""
    importance_max: Annotated[float, Field(ge=1)] = 5.0
    """A token whose ratio is higher is masked. inf keeps all."""

    num_top: ClassVar[int] = 8
    corrects_itself: ClassVar[bool] = False

    @property
    def level(self) -> Literal["token"]:
        return "token"

    def __call__(self, tokens: TokenInputs) -> TokenLoss:
        """Per-token loss. Measures as of the loss `clip`, and `sampler_mass`: what the sampler's most likely tokens hold.

        Raises `RecordError` where the rollouts came without the sampler's most likely tokens.
        """
        top = _demanded(tokens.top)
        low, high = 1 - self.epsilon, 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)
        advantages = tokens.advantages
        ratio = ratio_of(tokens)
        measured = ratio.detach()
        kept = inside(measured, self.importance_min, self.importance_max)
        loss = -advantages * (ratio.where(kept, 0.0) - self._mass_in_band(top))
        measures = {
            "importance_ratio": measured,
            "masked": ~kept,
            "clipped_low": (measured < low) & (advantages < 0),
            "clipped_high": (measured > high) & (advantages > 0),
            "sampler_mass": top.sampler_logprobs[:, :-1].exp().sum(1).clamp(max=1.0),
        }
        return TokenLoss(loss=loss, measures=measures)

    def _mass_in_band(self, top: TopInputs) -> Tensor:
        """`[N]`: the policy's mass in the band, less 1 where that of the rest is in it: the same gradient."""
        log_ratios = log_ratio(top.logprobs.detach(), top.sampler_logprobs)
        in_band = inside(log_ratios.exp(), self.importance_min, self.importance_max)
        rest_in_band = inside(_rest_ratio(top), self.importance_min, self.importance_max)
        weights = in_band.to(top.logprobs.dtype) - rest_in_band.to(top.logprobs.dtype)[:, None]
        return (weights * top.logprobs.exp()).sum(1)


def _demanded(top: TopInputs | None) -> TopInputs:
    if top is None:
        raise RecordError(
            "score_centering needs the sampler's most likely tokens at each trained token, and rollouts of this step were "
            'sampled without; set loss.name = "clip" to train them, or begin a run that asks for them '
            "(engine.num_sampler_logprobs)"
        )
    return top


def _rest_ratio(top: TopInputs) -> Tensor:
    """`[N]`: the policy's mass on all other tokens over the sampler's."""
    mass = top.sampler_logprobs.double().exp().sum(1)
    return (top.log_rest.double() - (1 - mass).clamp(min=SMALLEST_REST).log()).exp()
