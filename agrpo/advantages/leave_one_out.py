"""RLOO: each rollout is held against the mean of the others. Back to Basics, arXiv:2402.14740.

    A_i = r_i − 1/(n − 1) Σ_{j ≠ i} r_j = n/(n − 1) (r_i − mean)

The paper's reward has the KL penalty inside; here a penalty is a term of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agrpo.advantages.statistics import centred
from agrpo.records.group_rewards import GroupRewards
from agrpo.registry import part


@part
class LeaveOneOut:
    """r − mean of the other scored rollouts of the group, in units of the reward: nothing is divided by a deviation."""

    @property
    def min_group(self) -> int:
        """One rollout has no others."""
        return 2

    @property
    def spans_step(self) -> bool:
        """Each group stands for itself."""
        return False

    def __call__(self, groups: Sequence[GroupRewards]) -> list[np.ndarray]:
        """float32 `[G]` by group; 0 where nothing was scored, and everywhere in a group whose scored rewards are equal.

        Raises `RewardError` for an infinite reward, which has no mean.
        """
        return [_against_the_others(group.totals) for group in groups]


def _against_the_others(totals: np.ndarray) -> np.ndarray:
    num_scored = int(np.count_nonzero(~np.isnan(totals)))
    return (centred(totals) * (num_scored / max(num_scored - 1, 1))).astype(np.float32)
