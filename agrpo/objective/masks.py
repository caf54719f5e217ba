"""Which tokens keep their policy term: of sequences that are not too far off policy, and of high entropy.

Off-policy sequences: DeepSeek-V3.2, arXiv:2512.02556. High-entropy tokens: Beyond the 80/20 Rule, arXiv:2506.01939.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING

from agrpo.losses.terms.sequences import mean_over_sample

if TYPE_CHECKING:
    from torch import Tensor

    from agrpo.config.objective import MasksSection
    from agrpo.records.tokens import StepTotals, TokenInputs


def too_far(section: MasksSection, tokens: TokenInputs) -> Tensor | None:
    """Bool `[N]`: tokens of samples that are left out. None: the mask is off.

    A token whose log-prob is not a number counts as unmoved (G-140).
    """
    if section.off_policy_threshold is None:
        return None
    fallen = (tokens.sampler_logprobs - tokens.logprobs.detach()).nan_to_num(0.0)
    return (tokens.advantages < 0) & (mean_over_sample(fallen, tokens) > section.off_policy_threshold)


def too_certain(tokens: TokenInputs, totals: StepTotals) -> Tensor | None:
    """Bool `[N]`: tokens whose entropy is below the step's threshold (G-141). None: there is none."""
    if totals.entropy_threshold is None:
        return None
    entropy = tokens.entropy if tokens.entropy_ahead is None else tokens.entropy_ahead
    assert entropy is not None, "a mask by entropy needs it"
    return entropy.detach() < totals.entropy_threshold


def left_out(masks: Iterable[Tensor | None]) -> Tensor | None:
    """Bool `[N]`: tokens that any of the masks leaves out. None: there is no mask."""
    there = [mask for mask in masks if mask is not None]
    return reduce(operator.or_, there) if there else None
