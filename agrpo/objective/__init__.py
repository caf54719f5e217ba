"""The objective of a step: a loss, what masks and weighs it, what is added to it, and how its tokens are summed.

    share = aggregation( loss x masks x correction + penalty ) - bonus

Every part sees flat tensors over trained tokens. What spans the whole step is known before its first backward
(`StepTotals`), so no split into rows, micro-batches or ranks changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agrpo.config.objective import CorrectionSection, DivergenceSection, EntropySection, MasksSection
from agrpo.objective.correction import corrected
from agrpo.objective.divergence import charged
from agrpo.objective.entropy import bonus
from agrpo.objective.lookahead import looked_ahead
from agrpo.objective.masks import left_out, too_certain, too_far
from agrpo.records.tokens import StepTotals, TokenInputs, TokenLoss

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from agrpo.aggregations import Aggregation
    from agrpo.losses import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveShare:
    """What a micro-batch adds to a step."""

    token_loss: TokenLoss
    """Masked, weighed, with the penalty; the measures of all parts."""
    share: Tensor
    """Scalar: the micro-batch's part of the step's loss."""
    bonus: Tensor | None = None
    """Scalar: what the share would be greater by without the bonus for entropy. None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """All that decides a step's loss. Plain data, which travels to every rank."""

    loss: Loss
    aggregation: Aggregation
    correction: CorrectionSection = field(default_factory=CorrectionSection)
    masks: MasksSection = field(default_factory=MasksSection)
    divergence: DivergenceSection = field(default_factory=DivergenceSection)
    entropy: EntropySection = field(default_factory=EntropySection)

    @property
    def looks_ahead(self) -> bool:
        """Whether every token's entropy must be known before the first backward: one more forward of the step's rows."""
        return self.masks.top_entropy < 1 or self.entropy.adaptive

    @property
    def needs_reference(self) -> bool:
        return self.divergence.coefficient > 0

    def looked_ahead(self, totals: StepTotals, entropies: np.ndarray) -> StepTotals:
        """The step's totals with what follows from the entropies `[N]` of all its tokens, nats: see `lookahead`."""
        return looked_ahead(self.masks, self.entropy, totals, entropies)

    def __call__(self, tokens: TokenInputs, totals: StepTotals) -> ObjectiveShare:
        """The micro-batch's share of the step's loss, and its tokens' losses before they are summed."""
        tokens = corrected(self.correction, tokens)
        masks = {"off_policy_masked": too_far(self.masks, tokens), "entropy_masked": too_certain(tokens, totals)}
        tokens = replace(tokens, left_out=left_out(masks.values()))
        policy = self.loss(tokens)
        terms = policy.loss if tokens.left_out is None else policy.loss.where(~tokens.left_out, 0.0)
        measures = policy.measures | {name: mask for name, mask in masks.items() if mask is not None}
        if tokens.correction is not None:
            terms = terms if self.loss.corrects_itself else terms * tokens.correction
            measures["correction"] = tokens.correction
        if self.needs_reference:
            divergence = charged(self.divergence, tokens, self.loss.level)
            terms = terms + self.divergence.coefficient * divergence
            measures["divergence"] = divergence.detach()
        share, token_loss = self.aggregation(terms, tokens, totals), replace(policy, loss=terms, measures=measures)
        if totals.entropy_coefficient == 0:
            return ObjectiveShare(token_loss=token_loss, share=share)
        given = bonus(tokens, totals)
        return ObjectiveShare(token_loss=token_loss, share=share - given, bonus=given.detach())
