"""The groups that are scored and wait for a step, as a run's folder has them while it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agrpo.instruments.diagnosis import Waiting
from agrpo.instruments.diagnosis.evidence import Evidence
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.score import NOT_ASKED, Mark, ScoredGroup, fills_step

NEWEST_GROUPS = 2000
"""Groups that are read at most; what older ones say is known by then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """What counts of one group."""

    asked: bool
    """Whether it has rollouts; groups that have none wait for nothing."""
    equal: bool
    left_out: bool
    """By a filter."""
    fills: bool
    """A place of the step."""
    rewards: list[float]
    num_rollouts: int
    num_failed: int


class FollowedWaiting:
    """Reads every scored group once, however often it looks."""

    def __init__(self, folder: RunFolder, settings: Mapping[str, Any]) -> None:
        evidence = Evidence(history=[], size=1, settings=settings)
        self._places = int(evidence.setting("step.groups") or 0)
        self._zero_variance = evidence.zero_variance or "refill"
        self._folder = folder
        self._groups: dict[int, _Group] = {}

    def update(self, floor: int) -> Waiting:
        """Look again. Every ticket below the floor is consumed."""
        tickets = self._folder.scored.numbers(floor)[-NEWEST_GROUPS:]
        before, self._groups = self._groups, {}
        for ticket in tickets:
            group = before.get(ticket) or self._read(ticket)
            if group is not None:
                self._groups[ticket] = group
        return self._summed()

    def _read(self, ticket: int) -> _Group | None:
        data = self._folder.scored.read(ticket)
        if data is None:
            return None
        return _group(scored_from_arrow(data, self._folder.scored.key(ticket)), self._zero_variance)

    def _summed(self) -> Waiting:
        groups = [group for group in self._groups.values() if group.asked]
        rewards = [reward for group in groups for reward in group.rewards]
        rollouts = sum(group.num_rollouts for group in groups)
        return Waiting(
            num_groups=len(groups),
            equal_share=sum(group.equal for group in groups) / len(groups) if groups else 0.0,
            left_out_share=sum(group.left_out for group in groups) / len(groups) if groups else 0.0,
            reward_mean=math.fsum(rewards) / len(rewards) if rewards else None,
            failed_share=sum(group.num_failed for group in groups) / rollouts if rollouts else 0.0,
            places=self._places,
            places_filled=min(self._places, sum(group.fills for group in groups)),
        )


def _group(scored: ScoredGroup, zero_variance: str) -> _Group:
    failed = [
        tokens == 0 or any(score.errors[index] is not None for score in scored.scores)
        for index, tokens in enumerate(scored.num_prompt_tokens)
    ]
    return _Group(
        asked=not scored.marks & NOT_ASKED,
        equal=Mark.EQUAL_REWARDS in scored.marks,
        left_out=Mark.LEFT_OUT in scored.marks,
        fills=fills_step(scored.marks, zero_variance),
        rewards=[reward for reward in scored.rewards if math.isfinite(reward)],
        num_rollouts=len(failed),
        num_failed=sum(failed),
    )
