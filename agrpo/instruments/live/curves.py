"""Curves of characters: a chart of several rows, or of one. NaN is a step without a value: it leaves a gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#"
"""What fills a character from empty to full, for terminals that show no blocks."""


def columns_of(values: Sequence[float], width: int, *, most_values: int | None = None) -> list[float]:
    """The values as at most `width` columns; where there are more values, a column is the mean of its neighbours.

    `most_values`: how many there will be in the end. Few of them get several columns each, so that they fill the width.
    """
    if not values or width < 1:
        return []
    if len(values) <= width:
        repeat = max(1, width // max(most_values, len(values))) if most_values else 1
        return [value for value in values for _ in range(repeat)]
    bounds = [index * len(values) // width for index in range(width + 1)]
    return [_mean(values[begin:end]) for begin, end in pairwise(bounds)]


def chart(columns: Sequence[float], height: int, *, ascii_only: bool = False) -> list[str]:
    """Rows of characters, the top one first, from the smallest column to the largest.

    The smallest still shows, and so do columns that are all equal: as a line at the bottom.
    """
    ramp = ASCII if ascii_only else BLOCKS
    told = [value for value in columns if not math.isnan(value)]
    low, high = min(told, default=0.0), max(told, default=0.0)
    top = (len(ramp) - 1) * height
    levels = [
        0 if math.isnan(value) else 1 if low == high else 1 + round((value - low) / (high - low) * (top - 1))
        for value in columns
    ]
    return ["".join(_cell(level, row, ramp) for level in levels) for row in reversed(range(height))]


def _mean(values: Sequence[float]) -> float:
    told = [value for value in values if not math.isnan(value)]
    return fmean(told) if told else math.nan


def _cell(level: int, row: int, ramp: str) -> str:
    full = len(ramp) - 1
    return ramp[min(max(level - row * full, 0), full)]
