"""GRPO: a rollout is as good as its reward stands above its group's mean. DeepSeekMath, arXiv:2402.03300, eq. 3.

Deviation: `scale = "none"` leaves the deviation undivided (Dr. GRPO, arXiv:2503.20783).
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from agrpo.errors import RewardError
from agrpo.registry import part


@part
class GRPO:
    """(r − mean) / (std + epsilon) over the scored rollouts of the group; std is the sample estimate (n − 1)."""

    scale: Literal["group", "none"] = "group"
    """`group` divides by the group's standard deviation, `none` does not divide."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-4
    """Added to the standard deviation. In units of the reward."""

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        """float32 `[G]`; 0 where the reward is NaN, and everywhere if fewer than two are scored or all are equal.

        Raises `RewardError` for an infinite reward, which has no mean.
        """
        advantages = np.zeros(len(rewards), dtype=np.float32)
        scored = ~np.isnan(rewards)
        values = np.asarray(rewards, dtype=np.float64)[scored]
        if np.isinf(values).any():
            raise RewardError(f"a group's rewards are {rewards.tolist()}; an advantage needs finite ones, or NaN")
        # Equal rewards are compared, not subtracted: their mean may be one rounding away from them.
        if len(values) < 2 or values.min() == values.max():
            return advantages
        above = values - values.mean()
        advantages[scored] = above / (values.std(ddof=1) + self.epsilon) if self.scale == "group" else above
        return advantages
