"""The k3 estimate of the reverse KL divergence from the reference policy, per token.

Schulman, "Approximating KL divergence" (2020); with the importance ratio, which makes its gradient that of the divergence:
DeepSeek-V3.2, arXiv:2512.02556.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agrpo.losses.terms.ratio import log_ratio, ratio_of

if TYPE_CHECKING:
    from torch import Tensor

    from agrpo.config.objective import DivergenceSection
    from agrpo.records.tokens import TokenInputs


def estimate(tokens: TokenInputs) -> Tensor:
    """`pi_ref / pi - log(pi_ref / pi) - 1`, `[N]`, with gradient (G-137)."""
    assert tokens.reference_logprobs is not None, "a penalty needs the reference policy's log-probs"
    logs = log_ratio(tokens.reference_logprobs, tokens.logprobs)
    return logs.exp() - logs - 1


def charged(section: DivergenceSection, tokens: TokenInputs, level: Literal["token", "sequence"]) -> Tensor:
    """`[N]`: what the coefficient multiplies, with gradient. `level`: of the loss's importance ratio (G-138, G-139)."""
    return estimate(tokens) * ratio_of(tokens, level) if section.unbiased else estimate(tokens)
