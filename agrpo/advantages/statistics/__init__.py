"""Means and deviations over what was scored: NaN is in none of them (G-126)."""

from __future__ import annotations

import numpy as np

from agrpo.errors import RewardError


def centred(values: np.ndarray) -> np.ndarray:
    """float64 `[G]`: how far each value is above the mean; 0 where it is NaN, and everywhere if all or all but one are.

    Equal values give exactly 0. Raises `RewardError` for an infinite one, which has no mean.
    """
    above = np.zeros(len(values), np.float64)
    known = ~np.isnan(values)
    found = _finite(values[known])
    # Equal values are compared, not subtracted: their mean may be one rounding away from them.
    if len(found) >= 2 and found.min() != found.max():
        above[known] = found - found.mean()
    return above


def deviation(values: np.ndarray) -> float:
    """The sample estimate (n - 1) of the standard deviation (G-127). 0 for equal values, and for fewer than two."""
    found = _finite(values[~np.isnan(values)])
    return 0.0 if len(found) < 2 or found.min() == found.max() else float(found.std(ddof=1))


def standardised(values: np.ndarray, epsilon: float) -> np.ndarray:
    """float64 `[G]`: `centred`, divided by `deviation` + epsilon."""
    return centred(values) / (deviation(values) + epsilon)


def _finite(values: np.ndarray) -> np.ndarray:
    if np.isinf(values).any():
        raise RewardError(f"rewards are {values.tolist()}; an advantage needs finite ones, or NaN")
    return np.asarray(values, np.float64)
