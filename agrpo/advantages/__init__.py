"""Advantages: how much better than its group a rollout was. A decision of the learner, not a fact.

An estimator sees all groups that a step trains at once, whatever rows, micro-batches and processes they are laid into.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from agrpo.registry import Registry

if TYPE_CHECKING:
    import numpy as np

    from agrpo.records.group_rewards import GroupRewards


class Advantage(Protocol):
    """An estimator. Its fields are its knobs."""

    @property
    def min_group(self) -> int:
        """Fewest scored rollouts of a group that it can make something of; a group of fewer is not trained."""
        ...

    @property
    def spans_step(self) -> bool:
        """Whether a group's advantages depend on the other groups of its step."""
        ...

    def __call__(self, groups: Sequence[GroupRewards]) -> list[np.ndarray]:
        """float32 `[G]` for each of the step's groups, in their order; 0 where nothing was scored.

        Raises `RewardError` for rewards that are not finite.
        """
        ...


advantages: Registry[Advantage] = Registry("agrpo.advantages")

__all__ = ["Advantage", "advantages"]
