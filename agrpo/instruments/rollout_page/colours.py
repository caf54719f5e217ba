"""Colours of tokens by what is known of them, with a legend, and marks that say the same without colour.

What is ordinary has no colour. Hues are those of Okabe and Ito, which the colour-blind tell apart.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agrpo.instruments.rollout_page.facts import TokenFacts

PLAIN = ""
_BLACK_ON = "#000000 on "
_YELLOW, _ORANGE, _VERMILLION = _BLACK_ON + "#f0e442", _BLACK_ON + "#e69f00", "#ffffff on #d55e00"
_SKY, _BLUE, _GREEN, _PURPLE = (
    _BLACK_ON + "#56b4e9",
    "#ffffff on #0072b2",
    "#ffffff on #009e73",
    _BLACK_ON + "#cc79a7",
)
_PALE = _BLACK_ON + "#faf6c0"
_VERSIONS = (_SKY, _ORANGE, _GREEN, _YELLOW, _PURPLE, _BLUE, _VERMILLION)
_STRONG, _STRONGEST = ("‹", "›"), ("«", "»")


class Colouring(StrEnum):
    """What the colour of a token tells."""

    LOGPROB = "logprob"
    RATIO = "ratio"
    ADVANTAGE = "advantage"
    ENTROPY = "entropy"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Band:
    """One range of a scale."""

    label: str
    style: str = PLAIN
    marks: tuple[str, str] = ("", "")
    """Around the token, where there is no colour."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """A token's value as one of a few bands, from low to high."""

    title: str
    """With its unit."""
    value: Callable[[TokenFacts], float | None]
    edges: Sequence[float]
    """Between the bands; one more band than edges. An edge belongs to the band above it."""
    bands: Sequence[Band]
    measured: bool = True
    """Whether the values have a mean."""

    def band(self, token: TokenFacts) -> Band | None:
        """None: nothing is known of it."""
        value = self.value(token)
        if value is None:
            return None
        # What is not a number lies beyond every bound.
        return self.bands[-1 if math.isnan(value) else bisect_right(self.edges, value)]


def scale_of(colouring: Colouring, settings: Mapping[str, Any], tokens: Sequence[TokenFacts]) -> Scale:
    """The scale for these tokens; `settings`: the run's, whose loss says which ratios are out of bounds."""
    if colouring is Colouring.RATIO:
        return _ratio_scale(settings)
    if colouring is Colouring.VERSION:
        return _version_scale(tokens)
    return {Colouring.LOGPROB: _LOGPROB, Colouring.ADVANTAGE: _ADVANTAGE, Colouring.ENTROPY: _ENTROPY}[colouring]


_LOGPROB = Scale(
    title="sampler's log-prob, nats",
    value=lambda token: token.sampler_logprob,
    edges=(-4.605, -2.303, -0.693, -0.105),
    bands=(
        Band("below -4.605 (p < 0.01)", _VERMILLION, _STRONGEST),
        Band("below -2.303 (p < 0.1)", _ORANGE, _STRONG),
        Band("below -0.693 (p < 0.5)", _YELLOW),
        Band("below -0.105 (p < 0.9)", _PALE),
        Band("above (p ≥ 0.9)"),
    ),
)
_ENTROPY = Scale(
    title="entropy of the learner's next-token distribution, nats",
    value=lambda token: token.entropy,
    edges=(0.1, 0.5, 1.0, 2.0),
    bands=(
        Band("below 0.1"),
        Band("above 0.1", _PALE),
        Band("above 0.5", _YELLOW),
        Band("above 1", _ORANGE, _STRONG),
        Band("above 2", _VERMILLION, _STRONGEST),
    ),
)
_ADVANTAGE = Scale(
    title="advantage, one value for all trained tokens of a sequence",
    value=lambda token: token.advantage,
    edges=(-1.0, -1e-6, 1e-6, 1.0),
    bands=(
        Band("below -1", _VERMILLION),
        Band("below 0", _ORANGE),
        Band("0"),
        Band("above 0", _SKY),
        Band("above 1", _BLUE),
    ),
)


def _ratio_scale(settings: Mapping[str, Any]) -> Scale:
    """Bands of the run's own bounds, where its loss has them."""
    loss = settings.get("loss", {})
    epsilon = float(loss.get("epsilon", 0.2))
    epsilon_high = epsilon if loss.get("epsilon_high") is None else float(loss["epsilon_high"])
    least, most = float(loss.get("importance_min", 0.5)), float(loss.get("importance_max", 5.0))
    low, high = max(least, 1 - epsilon), min(most, 1 + epsilon_high)
    out = "left out of the loss" if "importance_min" in loss else "far"
    trust = "trust region" if "epsilon" in loss else "near 1"
    return Scale(
        title="importance ratio, learner's over sampler's probability",
        value=lambda token: token.ratio,
        edges=(least, low, high, most),
        bands=(
            Band(f"below {least:g} ({out})", _BLUE, _STRONGEST),
            Band(f"below {low:g}", _SKY, _STRONG),
            Band(f"{low:g} to {high:g} ({trust})"),
            Band(f"above {high:g}", _ORANGE, _STRONG),
            Band(f"above {most:g} ({out})", _VERMILLION, _STRONGEST),
        ),
    )


def _version_scale(tokens: Sequence[TokenFacts]) -> Scale:
    """A colour for every version but the only one."""
    versions = sorted({token.version for token in tokens if token.version is not None})
    styles = [PLAIN] if len(versions) == 1 else [_VERSIONS[place % len(_VERSIONS)] for place in range(len(versions))]
    return Scale(
        title="policy version that sampled the token",
        value=lambda token: token.version,
        edges=versions[1:],
        bands=[Band(f"v{version}", style) for version, style in zip(versions, styles, strict=True)],
        measured=False,
    )
