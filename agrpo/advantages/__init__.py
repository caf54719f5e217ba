"""Advantages: how much better than its group a rollout was. A decision of the learner, not a fact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from agrpo.registry import Registry

if TYPE_CHECKING:
    import numpy as np


class Advantage(Protocol):
    """An estimator. Its fields are its knobs."""

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        """float32 `[G]` from one group's summed rewards float64 `[G]`, NaN where nothing was scored; there it is 0."""
        ...


advantages: Registry[Advantage] = Registry("agrpo.advantages")

__all__ = ["Advantage", "advantages"]
