"""Whether a measure rises or falls: a robust slope, against a bar made of the measure's own noise.

The slope is the median of the slopes between all pairs of steps (Theil 1950, Sen 1968), so a few wild steps do not
move it. The noise is the median absolute deviation around that line. Steps that resemble the one before carry less
news than independent ones, so the bar grows with their correlation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise
from statistics import fmean, median

BARS = 3.0
"""A change counts beyond this many standard errors: by chance alone that is one in several hundred measures."""
MOST_CORRELATION = 0.8
"""Of neighbouring steps, as it is estimated. A curve around a straight line would otherwise look like pure noise."""
MAD_TO_DEVIATION = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""


class Direction(StrEnum):
    """Where a measure goes."""

    RISING = "rising"
    FALLING = "falling"
    FLAT = "flat"
    """Or too noisy to say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """A straight line through a measure's steps."""

    direction: Direction
    first: float
    """The line at the first step."""
    last: float
    """The line at the last step."""

    @property
    def change(self) -> float:
        return self.last - self.first

    @property
    def rising(self) -> bool:
        return self.direction is Direction.RISING

    @property
    def falling(self) -> bool:
        return self.direction is Direction.FALLING


def trend_of(steps: Sequence[float], values: Sequence[float], least: float) -> Trend:
    """The trend of at least three values; flat where the line moves by less than `least`, or than its noise allows."""
    slope = median(
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(zip(steps, values, strict=True), 2) if b[0] != a[0]
    )
    intercept = median(value - slope * step for step, value in zip(steps, values, strict=True))
    first, last = intercept + slope * steps[0], intercept + slope * steps[-1]
    residuals = [value - intercept - slope * step for step, value in zip(steps, values, strict=True)]
    bar = max(least, BARS * _error_of_change(steps, residuals))
    if abs(last - first) < bar:
        direction = Direction.FLAT
    else:
        direction = Direction.RISING if last > first else Direction.FALLING
    return Trend(direction=direction, first=first, last=last)


def _error_of_change(steps: Sequence[float], residuals: Sequence[float]) -> float:
    """Standard error of the line's whole change: that of a least-squares slope, with fewer steps where they resemble."""
    centre = fmean(steps)
    spread = math.sqrt(math.fsum((step - centre) ** 2 for step in steps))
    correlation = _correlation(residuals)
    widening = math.sqrt((1 + correlation) / (1 - correlation))
    return _deviation(residuals) * (steps[-1] - steps[0]) / spread * widening


def _deviation(residuals: Sequence[float]) -> float:
    """Standard deviation; from the mean absolute residual where more than half of them are 0."""
    robust = MAD_TO_DEVIATION * median(abs(residual) for residual in residuals)
    return robust or math.sqrt(math.pi / 2) * fmean(abs(residual) for residual in residuals)


def _correlation(residuals: Sequence[float]) -> float:
    """Of each residual with the next, from 0 to `MOST_CORRELATION`."""
    squares = math.fsum(residual**2 for residual in residuals)
    if squares == 0.0:
        return 0.0
    products = math.fsum(a * b for a, b in pairwise(residuals))
    return min(max(products / squares, 0.0), MOST_CORRELATION)
