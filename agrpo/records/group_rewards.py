"""The rewards of one group of a step, in the form that an advantage is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agrpo.records.score import Score


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupRewards:
    """What each rollout of a group earned, by reward and in all."""

    totals: np.ndarray
    """float64 `[G]`: the weighted sum of each rollout's rewards, NaN where nothing was scored."""
    values: np.ndarray
    """float64 `[G, R]`: before their weights, NaN where a reward has nothing to say."""
    weights: np.ndarray
    """float64 `[R]`."""

    @classmethod
    def of(cls, scores: Sequence[Score], totals: Sequence[float]) -> GroupRewards:
        """Of what the rewards said. What a rollout's total holds beyond them is a reward of its own, of weight 1."""
        columns = [[math.nan if value is None else value for value in score.values] for score in scores]
        weights = [score.weight for score in scores]
        brought = [_brought(scores, index, total) for index, total in enumerate(totals)]
        if any(own and not math.isnan(own) for own in brought):
            columns, weights = [*columns, brought], [*weights, 1.0]
        values = np.array(columns, np.float64).reshape(len(columns), len(totals)).T
        return cls(totals=np.asarray(totals, np.float64), values=values, weights=np.asarray(weights, np.float64))

    @classmethod
    def of_totals(cls, totals: Sequence[float] | np.ndarray) -> GroupRewards:
        """Of sums alone, taken for the values of a single reward."""
        summed = np.asarray(totals, np.float64)
        return cls(totals=summed, values=summed[:, None], weights=np.ones(1))


def _brought(scores: Sequence[Score], index: int, total: float) -> float:
    """The rollout's own reward; NaN where it has neither that nor another."""
    given = [score.weight * value for score in scores if (value := score.values[index]) is not None]
    return total - math.fsum(given)
