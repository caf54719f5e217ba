"""Pass rate: groups that are neither too easy nor too hard, a curriculum that follows the policy."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from agrpo.records.score import ScoredGroup, values_of
from agrpo.registry import part


@part
class PassRate:
    """The share of a group's rollouts that pass, which earn `threshold` or more, lies between `low` and `high`."""

    low: Annotated[float, Field(ge=0, le=1)]
    """Least share, itself included."""
    high: Annotated[float, Field(ge=0, le=1)]
    """Largest share, itself included."""
    threshold: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Least reward of a rollout that passes. In units of the reward."""
    reward: str | None = None
    """Name of the reward that is looked at, before its weight. None: the weighted sum."""

    @field_validator("high")
    @classmethod
    def _bounds_a_band(cls, high: float, told: ValidationInfo) -> float:
        low = told.data.get("low")
        if low is not None and low > high:
            raise ValueError(
                f"low = {low:g} is above it, and no group would ever be trained; lower that, or raise this"
            )
        if (low, high) == (0, 1):
            raise ValueError("with low = 0 it leaves nothing out; raise low, lower high, or take the filter away")
        return high

    def __call__(self, group: ScoredGroup) -> bool:
        """Over the rollouts that have a value. A group in which none has one may pass: too few scores are another matter."""
        values = values_of(group.scores, self.reward) or group.rewards
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return True
        return self.low <= sum(value >= self.threshold for value in known) / len(known) <= self.high
