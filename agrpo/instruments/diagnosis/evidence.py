"""What the rules read: the measures of the last steps, the steps before them, and the run's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from agrpo.config.zero_variance import zero_variance_of
from agrpo.instruments.diagnosis.trend import Trend, trend_of
from agrpo.instruments.history import StepPoint


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The last steps of a history, up to two windows of them."""

    history: Sequence[StepPoint]
    """All finished steps."""
    size: int
    """Steps of a window."""
    settings: Mapping[str, Any]
    """The settings tree of the run document."""

    @property
    def window(self) -> Sequence[StepPoint]:
        """The steps that are read."""
        return self.history[-self.size :]

    @property
    def both(self) -> Sequence[StepPoint]:
        """The window and the one before it, over which a measure rises or falls."""
        return self.history[-2 * self.size :]

    @property
    def needed(self) -> int:
        """Least steps of a window that are read at all."""
        return needed_steps(self.size)

    @property
    def zero_variance(self) -> str | None:
        """What becomes of groups with equal rewards; where the run does not say, `async.max_staleness` decides."""
        chosen, limit = self.setting("step.zero_variance"), self.setting("async.max_staleness")
        return chosen if limit is None else zero_variance_of(self.settings)

    @property
    def samples_per_step(self) -> float | None:
        """Samples that a step of the window takes, dropped ones included: asked prompts times rollouts per prompt."""
        first, last = self.window[0], self.window[-1]
        rollouts = self.setting("engine.num_generations")
        if rollouts is None or last.step == first.step:
            return None
        return rollouts * sum(map(_num_asked, self.window, self.window[1:])) / (last.step - first.step)

    @property
    def set_aside(self) -> float | None:
        """The share of the window's groups with equal rewards, which `refill` replaces; None without refill or a measure.

        A step that consumes more groups says more.
        """
        name = "frac_zero_std_groups"
        shares = [
            (after.metrics[name], _num_asked(before, after))
            for before, after in pairwise(self.window)
            if name in after.metrics
        ]
        consumed = sum(number for _, number in shares)
        if self.zero_variance != "refill" or not consumed:
            return None
        return math.fsum(share * number for share, number in shares) / consumed

    def values(self, name: str, points: Sequence[StepPoint] | None = None) -> list[float]:
        """What the measure was, step by step, where it was logged."""
        found = (point.metrics.get(name) for point in (self.window if points is None else points))
        return [value for value in found if value is not None and math.isfinite(value)]

    def mean(self, name: str) -> float | None:
        """Over the window's steps; None where fewer than are needed logged it."""
        values = self.values(name)
        return fmean(values) if len(values) >= self.needed else None

    def weighted_mean(self, name: str, weight: str) -> float | None:
        """As `mean`, over what the measure `weight` counts: a step with little of it says little."""
        if self.mean(name) is None:
            return None
        weights = [point.metrics.get(weight, 0.0) for point in self.window if name in point.metrics]
        total = math.fsum(weights)
        values = self.values(name)
        if not total or len(values) != len(weights):
            return self.mean(name)
        return math.fsum(value * share for value, share in zip(values, weights, strict=True)) / total

    def median(self, name: str) -> float | None:
        """As `mean`, for a measure with outliers."""
        values = self.values(name)
        return median(values) if len(values) >= self.needed else None

    def total(self, name: str) -> float | None:
        """Sum over the window; None where no step logged it."""
        values = self.values(name)
        return math.fsum(values) if values else None

    def trend(self, name: str, least: float) -> Trend | None:
        """Over both windows; None where too few steps logged it. `least`: see `trend_of`."""
        logged = [point for point in self.both if math.isfinite(point.metrics.get(name, math.nan))]
        if len(logged) < 2 * self.needed:
            return None
        return trend_of([point.step for point in logged], [point.metrics[name] for point in logged], least)

    def setting(self, key: str) -> Any:
        """The value of `table.key`, None where the document does not hold it."""
        table, _, name = key.partition(".")
        values = self.settings.get(table)
        return values.get(name) if isinstance(values, Mapping) else None

    def has(self, key: str) -> bool:
        """Whether the run has a setting of that name; some belong to one engine or one loss."""
        table, _, name = key.partition(".")
        values = self.settings.get(table)
        return isinstance(values, Mapping) and name in values

    def named(self, key: str) -> str:
        """The setting's name with its value, as a reader may want to change it."""
        value = self.setting(key)
        return key if value is None else f"{key} (now {value:g})"


def _num_asked(before: StepPoint, after: StepPoint) -> float:
    """Prompts that the later of two steps consumed, without those that were left out or refused."""
    return after.num_prompts - before.num_prompts - after.metrics.get("rollout/unasked_count", 0.0)


def needed_steps(size: int) -> int:
    """Half a window: fewer steps say more of their noise than of the run."""
    return max(size // 2, 1)


def seconds(value: float) -> str:
    """A duration in words for people: `1.5 s`; two decimals below 0.1 s."""
    return f"{value:.2f} s" if value < 0.095 else f"{value:.1f} s"


def percent(share: float) -> str:
    """A share in words for people: `83 %`; one decimal below 10 %."""
    value = 100 * share
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:.0f} %"
