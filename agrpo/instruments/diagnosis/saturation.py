"""Saturation: groups whose rollouts all earn the same, and what that says of the prompts (A-357 to A-361)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agrpo.instruments.diagnosis.evidence import Evidence, percent
from agrpo.instruments.diagnosis.finding import NOTHING, Finding, Severity
from agrpo.instruments.diagnosis.trend import Trend

LOW = 0.25
"""Up to this share of equal-reward groups a step keeps most of its signal."""
HIGH = 0.5
"""From this share on, most groups teach nothing."""
EDGE = 0.1
"""Of the reward's range: nearer than this to its end is near the top, or the bottom."""
LOW_REWARD = 0.25
"""Of the reward's range: a mean reward up to here is low."""
LEAST_SHARE = 0.1
"""Smallest change of a share of groups that counts as rising or falling."""
LEAST_REWARD = 0.05
"""The same of a reward, in parts of its range."""

_ZERO_TO_ONE = frozenset({"accuracy", "exact_match", "reasoning_gym"})
"""Rewards of agrpo, whose values lie between 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class _Range:
    low: float
    high: float
    known: bool
    """From the rewards' own definitions; otherwise from what was seen."""

    @property
    def width(self) -> float:
        return self.high - self.low

    def place(self, reward: float) -> float:
        """Where a reward lies: 0 at the bottom, 1 at the top."""
        return (reward - self.low) / self.width if self.width else 0.5

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}" + ("" if self.known else " as seen so far")


def findings(evidence: Evidence) -> Iterator[Finding]:
    """One reading at most."""
    share = evidence.mean("frac_zero_std_groups")
    if share is None:
        return
    shares = evidence.trend("frac_zero_std_groups", LEAST_SHARE)
    rising = shares is not None and shares.rising
    if share <= LOW:
        yield _healthy(share)
        return
    equal = evidence.mean("reward_zero_std_groups")
    if equal is None or not (rising or share >= HIGH):
        return
    limits = _range(evidence)
    reward = evidence.trend("reward", LEAST_REWARD * limits.width)
    place = limits.place(equal)
    told = f"{_shares(share, shares)} earn one reward for all their rollouts, {equal:.2f} on average ({limits})"
    yield from _read(evidence, told, share=share, rising=rising, place=place, reward=reward)


def _read(
    evidence: Evidence, told: str, *, share: float, rising: bool, place: float, reward: Trend | None
) -> Iterator[Finding]:
    equal = evidence.trend("reward_zero_std_groups", 0.0)
    if rising and reward is not None and reward.falling and equal is not None and equal.falling:
        yield _regression(evidence, told, reward)
    elif place >= 1 - EDGE and (share >= HIGH or (reward is not None and reward.rising)):
        yield _top(evidence, told)
    elif share >= HIGH and place <= EDGE:
        yield _bottom(evidence, told)
    elif share >= HIGH and EDGE < place < 1 - EDGE:
        yield _mixture(told)


def _healthy(share: float) -> Finding:
    return Finding(
        rule="A-357",
        severity=Severity.GOOD,
        title="Most groups have something to learn from",
        reading=f"{percent(share)} of the groups earn one reward for all their rollouts.",
        change=NOTHING,
    )


def _top(evidence: Evidence, told: str) -> Finding:
    return Finding(
        rule="A-358",
        severity=Severity.NOTE,
        title="Saturated at the top: the prompts are too easy",
        reading=f"{told}: there is little left to learn from these prompts.",
        change="Stop here, or start a run with harder prompts (the table [prompts]).",
    )


def _bottom(evidence: Evidence, told: str) -> Finding:
    clipped = evidence.mean("completions/clipped_ratio")
    cut = (
        ""
        if clipped is None
        else f" {percent(clipped)} of the completions were cut before the model ended them "
        f"({evidence.named('engine.max_completion_length')})."
    )
    return Finding(
        rule="A-359",
        severity=Severity.WARNING,
        title="Stuck at the bottom: too hard, or the reward never fires",
        reading=f"{told}.{cut}",
        change="Read completions first: does [[rewards]] find the answer in them? Then easier prompts ([prompts]), a better "
        f"starting model (model.path), or room to answer ({evidence.named('engine.max_completion_length')}).",
    )


def _regression(evidence: Evidence, told: str, reward: Trend) -> Finding:
    return Finding(
        rule="A-360",
        severity=Severity.WARNING,
        title="Regression: groups that passed now fail together",
        reading=f"{told}, and the mean reward fell from {reward.first:.2f} to {reward.last:.2f}.{_collapse(evidence)}",
        change=f"Lower {evidence.named('optimizer.learning_rate')}, and begin again from weights of before the fall.",
    )


def _mixture(told: str) -> Finding:
    return Finding(
        rule="A-361",
        severity=Severity.NOTE,
        title="Most groups agree, in the middle of the range",
        reading=f"{told}. With 0/1 rewards that is a mixture of too easy and too hard prompts; otherwise one partial score "
        "that all rollouts share.",
        change="Read rollouts of such groups; then sort out prompts that are too easy or too hard ([prompts]), or let the "
        "reward tell more apart ([[rewards]]).",
    )


def _shares(share: float, trend: Trend | None) -> str:
    if trend is None or not trend.rising:
        return f"{percent(share)} of the groups"
    return f"{percent(share)} of the groups (rising, from {percent(max(trend.first, 0.0))})"


def _collapse(evidence: Evidence) -> str:
    """What duplicates and entropy were meanwhile, as the documented reading asks."""
    repeated, entropy = evidence.mean("completions/duplicate_frac"), evidence.mean("entropy")
    told = [
        *([] if repeated is None else [f"{percent(repeated)} of the rollouts repeat another of their group"]),
        *([] if entropy is None else [f"entropy is {entropy:.3f} nats per token"]),
    ]
    return f" {'; '.join(told)}." if told else ""


def _range(evidence: Evidence) -> _Range:
    """From the weights, where every reward's values lie between 0 and 1; else what the means of all steps showed."""
    rewards = evidence.settings.get("rewards")
    if rewards and all(_bounded(reward) for reward in rewards):
        weights = [float(reward.get("weight", 1.0)) for reward in rewards]
        return _Range(
            low=math.fsum(weight for weight in weights if weight < 0),
            high=math.fsum(weight for weight in weights if weight > 0),
            known=True,
        )
    names = ("reward", "reward_trained", "reward_zero_std_groups")
    seen = [value for name in names for value in evidence.values(name, evidence.history)]
    return _Range(low=min(seen), high=max(seen), known=False)


def _bounded(reward: Mapping[str, Any]) -> bool:
    return reward.get("name") in _ZERO_TO_ONE
