"""What a what-if comes to: signs that would have been others, groups dropped or won back, rewards, ranks."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from agrpo.records.whatif import WhatIfGroup, WhatIfRollout


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Flip:
    """A rollout whose advantage has the other sign. In order of how far it moved."""

    moved: float
    """By how much its advantage differs."""
    ticket: int
    rollout: WhatIfRollout = field(compare=False)


@dataclass(kw_only=True)
class Summary:
    """Counts over all groups of a what-if."""

    num_groups: int = 0
    num_rollouts: int = 0
    num_flipped_groups: int = 0
    """Groups with at least one flipped rollout."""
    num_flipped_rollouts: int = 0
    num_signed: int = 0
    """Rollouts whose recorded advantage is not 0, so that it has a sign to lose."""
    drops_before: Counter[str] = field(default_factory=Counter[str])
    """Groups that the recorded scores keep from being trained, by reason."""
    drops: Counter[str] = field(default_factory=Counter[str])
    """Groups that those of the what-if would."""
    lost: Counter[str] = field(default_factory=Counter[str])
    """Of them, those that the recorded scores let through."""
    won: Counter[str] = field(default_factory=Counter[str])
    """Groups that would have been let through, by the reason that keeps them out."""
    num_changed_rewards: int = 0
    """Rollouts whose reward differs, by whatever little."""
    errors: Counter[str] = field(default_factory=Counter[str])
    """Rollouts that the reward failed on, by its reason."""
    reward_mean_before: float | None = None
    reward_mean: float | None = None
    rank_correlation: float | None = None
    """Mean over the groups that have an order both before and after: Spearman's, of their advantages. None: there is none."""
    num_ranked: int = 0
    examples: list[Flip] = field(default_factory=list[Flip])
    """Flipped rollouts that moved furthest, one per group."""


def summarize(groups: Iterable[WhatIfGroup], num_examples: int = 5) -> Summary:
    """Read every group once."""
    summary = Summary()
    rewards_before, rewards, ranks = _Mean(), _Mean(), _Mean()
    for group in groups:
        _count(summary, group)
        rewards_before.add(rollout.reward_before for rollout in group.rollouts)
        rewards.add(rollout.reward for rollout in group.rollouts)
        ranks.add([_rank_correlation(group)])
        if flips := [*_flips(group)]:
            summary.examples = heapq.nlargest(num_examples, [*summary.examples, max(flips)])
    summary.reward_mean_before, summary.reward_mean = rewards_before.value, rewards.value
    summary.rank_correlation, summary.num_ranked = ranks.value, ranks.count
    return summary


def _count(summary: Summary, group: WhatIfGroup) -> None:
    num_flipped = sum(rollout.flipped for rollout in group.rollouts)
    summary.num_groups += 1
    summary.num_rollouts += len(group.rollouts)
    summary.num_flipped_groups += num_flipped > 0
    summary.num_flipped_rollouts += num_flipped
    summary.num_signed += sum(rollout.advantage_before != 0 for rollout in group.rollouts)
    summary.num_changed_rewards += sum(rollout.reward != rollout.reward_before for rollout in group.rollouts)
    summary.errors.update(rollout.error for rollout in group.rollouts if rollout.error is not None)
    before, after = group.drop_reason_before, group.drop_reason
    if before is not None:
        summary.drops_before[before] += 1
    if after is not None:
        summary.drops[after] += 1
    if before is None and after is not None:
        summary.lost[after] += 1
    if before is not None and after is None:
        summary.won[before] += 1


class _Mean:
    """A mean over what has a value."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, values: Iterable[float | None]) -> None:
        found = [value for value in values if value is not None]
        self.total += fmean(found) * len(found) if found else 0.0
        self.count += len(found)

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


def _flips(group: WhatIfGroup) -> Iterator[Flip]:
    for rollout in group.rollouts:
        if rollout.flipped:
            moved = abs(rollout.advantage - rollout.advantage_before)
            yield Flip(moved=moved, ticket=group.ticket, rollout=rollout)


def _rank_correlation(group: WhatIfGroup) -> float | None:
    """Over the rollouts that are scored both before and after."""
    both = [one for one in group.rollouts if one.reward is not None and one.reward_before is not None]
    before, after = (_ranks(np.array(values)) for values in (
        [one.advantage_before for one in both], [one.advantage for one in both]
    ))  # fmt: skip
    if len(both) < 2 or before.std() == 0 or after.std() == 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 1; equal values share the mean of their ranks."""
    ordered = np.sort(values)
    lowest, highest = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return (lowest + highest + 1) / 2
