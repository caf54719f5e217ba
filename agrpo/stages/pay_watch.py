"""The pay watch: an environment whose `get_reward` only fails ends the run instead of eating its prompts (ruling 15)."""

from __future__ import annotations

from collections import Counter

from agrpo.errors import EnvironmentFault
from agrpo.records.group import RolloutGroup

UNPAID_GROUPS_TO_STOP = 8
"""Groups of an environment in a row without a value: so long a streak is its fault, not the rollouts'."""


class PayWatch:
    """Counts the groups that one generator made.

    The scorer would meet those of before a resume again, whose errors are on record for good, and end a run whose
    environment has been mended.
    """

    def __init__(self) -> None:
        self._unpaid: Counter[str] = Counter()
        """Groups in a row, by environment."""

    def count(self, group: RolloutGroup) -> None:
        """Raises `EnvironmentFault` where `get_reward` failed for every rollout of 8 groups of one environment in a row."""
        stays = [rollout.stay for rollout in group.rollouts if not rollout.failed]
        asked = [stay for stay in stays if stay is not None and stay.reward_seconds is not None]
        if not asked:
            return
        name, errors = asked[0].environment, [stay.reward_error for stay in asked if stay.reward_error is not None]
        self._unpaid[name] = self._unpaid[name] + 1 if len(errors) == len(asked) else 0
        if self._unpaid[name] >= UNPAID_GROUPS_TO_STOP:
            raise EnvironmentFault(
                f"{name}.get_reward failed for every rollout of {self._unpaid[name]} groups in a row, last: {errors[-1]}; "
                "mend it, then `agrpo resume` this run"
            )
