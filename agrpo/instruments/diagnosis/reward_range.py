"""The range of a run's reward: what its rewards can give, or what was seen where that is unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agrpo.instruments.diagnosis.evidence import Evidence

EDGE = 0.1
"""Of the range: nearer than this to one end is near the top, or near the bottom."""
LOW = 0.2
"""Of the range: a mean reward up to here is low."""
LEAST_CHANGE = 0.05
"""Of the range: the smallest change of a mean reward that counts as rising or falling."""

_ZERO_TO_ONE = frozenset({"accuracy", "code_execution", "exact_match", "reasoning_gym", "think_format"})
"""Rewards of agrpo, whose values lie between 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class RewardRange:
    """Lowest and highest total reward of a rollout."""

    low: float
    high: float
    known: bool
    """From the rewards' own definitions; otherwise the lowest and highest mean that any step showed."""

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def constant(self) -> bool:
        """Nothing but one value was ever seen."""
        return not self.known and math.isclose(self.low, self.high, rel_tol=1e-9)

    def near_top(self, reward: float) -> bool:
        return self.width > 0 and reward >= self.high - EDGE * self.width

    def near_bottom(self, reward: float) -> bool:
        """Rewards that are all the same and not positive are taken for the bottom: none of them ever fired."""
        return reward <= self.low + EDGE * self.width if self.width > 0 else reward <= 0

    def is_low(self, reward: float) -> bool:
        return reward <= self.low + LOW * self.width

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}" + ("" if self.known else " as seen so far")


def reward_range(evidence: Evidence) -> RewardRange:
    """From the weights, where every reward's values lie between 0 and 1; else from the means of all steps."""
    rewards: list[Mapping[str, Any]] = evidence.settings.get("rewards") or []
    if rewards and all(reward.get("name") in _ZERO_TO_ONE for reward in rewards):
        weights = [float(reward.get("weight", 1.0)) for reward in rewards]
        low = math.fsum(weight for weight in weights if weight < 0)
        return RewardRange(low=low, high=math.fsum(weight for weight in weights if weight > 0), known=True)
    names = ("reward", "reward_trained", "reward_zero_std_groups")
    seen = [value for name in names for value in evidence.values(name, evidence.history)] or [0.0]
    return RewardRange(low=min(seen), high=max(seen), known=False)
