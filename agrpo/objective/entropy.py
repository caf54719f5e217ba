"""A bonus for the policy's entropy, fixed or adaptive. Skywork-OR1, arXiv:2505.22312."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agrpo.objective.masks import too_certain

if TYPE_CHECKING:
    from torch import Tensor

    from agrpo.config.objective import EntropySection
    from agrpo.records.tokens import StepTotals, TokenInputs


def applied(section: EntropySection, coefficient: float, entropy: float) -> float:
    """What multiplies the step's mean entropy (G-226). `coefficient`: before the step."""
    return 0.0 if section.adaptive and entropy > section.target else coefficient


def following(section: EntropySection, coefficient: float, entropy: float) -> float:
    """The coefficient of the next step (G-225)."""
    if not section.adaptive:
        return coefficient
    if entropy <= section.target:
        return min(coefficient + section.delta, section.maximum)
    return max(coefficient - section.delta, section.minimum)


def bonus(tokens: TokenInputs, totals: StepTotals) -> Tensor:
    """Scalar: the micro-batch's part of the coefficient times the mean entropy over tokens with a policy term (G-222, G-223)."""
    assert tokens.entropy is not None, "a bonus for entropy needs it"
    left_out = too_certain(tokens, totals)
    entropy = tokens.entropy if left_out is None else tokens.entropy.where(~left_out, 0.0)
    return totals.entropy_coefficient * entropy.sum() / max(totals.num_entropy_tokens, 1)
