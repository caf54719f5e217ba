"""GRPO: a rollout is as good as its reward stands above its group's mean. DeepSeekMath, arXiv:2402.03300, eq. 3.

`scale` has the variants: `batch` is that of Lite PPO (arXiv:2508.08221), `none` that of Dr. GRPO (arXiv:2503.20783).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from agrpo.advantages.statistics import centred, deviation, standardised
from agrpo.records.group_rewards import GroupRewards
from agrpo.registry import part


@part
class GRPO:
    """(r − mean of the group) / (std + epsilon) over the scored rollouts; std is the sample estimate (n − 1)."""

    scale: Literal["group", "batch", "none"] = "group"
    """What is divided by: `group`, the group's standard deviation; `batch`, that of all rollouts of the groups that the step
    trains; `none`, nothing."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-4
    """Added to the standard deviation. In units of the reward."""

    @property
    def min_group(self) -> int:
        """A mean of one is that one."""
        return 2

    @property
    def spans_step(self) -> bool:
        """Only `batch` looks at other groups."""
        return self.scale == "batch"

    def __call__(self, groups: Sequence[GroupRewards]) -> list[np.ndarray]:
        """float32 `[G]` by group; 0 where nothing was scored, and everywhere in a group whose scored rewards are equal.

        Raises `RewardError` for an infinite reward, which has no mean.
        """
        if self.scale == "group":
            return [standardised(group.totals, self.epsilon).astype(np.float32) for group in groups]
        over = self._of_the_step(groups) if self.scale == "batch" else 1.0
        return [(centred(group.totals) / over).astype(np.float32) for group in groups]

    def _of_the_step(self, groups: Sequence[GroupRewards]) -> float:
        return deviation(np.concatenate([np.empty(0), *(group.totals for group in groups)])) + self.epsilon
