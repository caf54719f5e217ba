"""Importance weights for what the engine sampled otherwise than the learner would have: truncated, or masked.

Truncated: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025). Masked, with two
bounds: IcePop, arXiv:2510.18855. Of whole sequences: Liu et al., "When speed kills stability" (2025).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from agrpo.losses.terms.ratio import inside, log_ratio
from agrpo.losses.terms.sequences import sum_over_sample

if TYPE_CHECKING:
    from torch import Tensor

    from agrpo.config.objective import CorrectionSection
    from agrpo.records.tokens import TokenInputs


def corrected(section: CorrectionSection, tokens: TokenInputs) -> TokenInputs:
    """The tokens with `old_logprobs` and `correction` filled in; as they are where the mode is `off`.

    Without old log-probs of their own the old policy is the one in training, as it is before the step (G-134).
    """
    if not section.is_on:
        return tokens
    old = tokens.logprobs.detach() if tokens.old_logprobs is None else tokens.old_logprobs
    return replace(tokens, old_logprobs=old, correction=_weights(section, replace(tokens, logprobs=old)))


def _weights(section: CorrectionSection, old: TokenInputs) -> Tensor:
    """`[N]`, no gradient (G-161 to G-165). `old`: the tokens as the old policy saw them.

    A weight that is not a number is 1.
    """
    logs = log_ratio(old.logprobs, old.sampler_logprobs).nan_to_num(0.0)
    if section.mode.startswith("sequence"):
        logs = log_ratio(sum_over_sample(logs, old), logs.new_zeros(()))
    low = 0.0 if section.minimum is None else section.minimum
    high = math.inf if section.maximum is None else section.maximum
    weights = logs.exp()
    if section.mode.endswith("truncate"):
        return weights.clamp(low, high)
    return weights.where(inside(weights, low, high), 0.0)
