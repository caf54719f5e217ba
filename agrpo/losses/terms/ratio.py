"""Importance ratios between the trained policy and the one that sampled the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agrpo.losses.terms.sequences import mean_over_sample

if TYPE_CHECKING:
    from torch import Tensor

    from agrpo.records.tokens import TokenInputs

LARGEST_LOG_RATIO = 20.0
"""Log-ratios are cut here before they are exponentiated: e^20 is beyond every band and far from overflow."""


def log_ratio(logprobs: Tensor, sampler_logprobs: Tensor) -> Tensor:
    """`[N]`, in nats, within ±`LARGEST_LOG_RATIO`; no gradient beyond, nor where it is not a number."""
    return (logprobs - sampler_logprobs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def ratio_of(tokens: TokenInputs, level: Literal["token", "sequence"] = "token") -> Tensor:
    """`[N]`, with gradient: `pi / pi_old` of each token, or the geometric mean over its sample (G-133; GSPO, arXiv:2507.18071).

    In a mean, a ratio that is not a number counts as 1.
    """
    logs = log_ratio(tokens.logprobs, tokens.old)
    return (mean_over_sample(logs.nan_to_num(0.0), tokens) if level == "sequence" else logs).exp()


def inside(ratio: Tensor, low: float, high: float) -> Tensor:
    """Bool `[N]`: whether the ratio lies in the band, its ends included. A ratio that is not a number does not."""
    return (ratio >= low) & (ratio <= high)
