"""GDPO: each reward is normalised in its group by itself, so that different patterns of rewards stay apart. arXiv:2601.05242.

    A_n = (r_n − mean of the group) / (std of the group + epsilon)      for every reward n
    A = Σ_n w_n A_n / (std of the batch + epsilon)                      the batch: all groups that the step trains

The paper takes the mean of the batch off as well. It is 0, since every A_n is centred in its group, and is left alone here: a
group whose every reward is equal has exactly 0, not a rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from agrpo.advantages.statistics import deviation, standardised
from agrpo.records.group_rewards import GroupRewards
from agrpo.registry import part


@part
class GDPO:
    """Rewards normalised one by one, weighed, summed, and scaled over the step. With a single reward it is `grpo`."""

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-4
    """Added to every standard deviation, of a group's reward and of the step's sums alike."""

    @property
    def min_group(self) -> int:
        """A mean of one is that one."""
        return 2

    @property
    def spans_step(self) -> bool:
        """By the last division."""
        return True

    def __call__(self, groups: Sequence[GroupRewards]) -> list[np.ndarray]:
        """float32 `[G]` by group; 0 where nothing was scored. A reward that is NaN for a rollout is left out of its sum.

        Raises `RewardError` for an infinite reward, which has no mean.
        """
        if all(len(group.weights) <= 1 for group in groups):
            return [standardised(group.totals, self.epsilon).astype(np.float32) for group in groups]
        sums = [self._weighed(group) for group in groups]
        scored = [own[~np.isnan(group.totals)] for own, group in zip(sums, groups, strict=True)]
        over = deviation(np.concatenate(scored)) + self.epsilon
        return [(own / over).astype(np.float32) for own in sums]

    def _weighed(self, group: GroupRewards) -> np.ndarray:
        """float64 `[G]`: Σ w_n A_n."""
        parts = [
            weight * standardised(column, self.epsilon)
            for weight, column in zip(group.weights, group.values.T, strict=True)
        ]
        return np.sum(parts, axis=0) if parts else np.zeros(len(group.totals))
