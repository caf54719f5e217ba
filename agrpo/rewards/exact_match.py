"""Whether the answer is the expected text, character for character."""

from __future__ import annotations

from typing import ClassVar

from agrpo.records.group import RolloutGroup
from agrpo.registry import part
from agrpo.rewards import answer_of, fact_of


@part
class ExactMatch:
    """1 if the stripped answer equals the stripped fact, 0 if not."""

    fact: str = "answer"
    """Column of the dataset that holds the expected text."""
    after: str = "</think>"
    """The answer is the text behind the last one of these, or all of it."""

    whole_group: ClassVar[bool] = False

    @property
    def needed_facts(self) -> tuple[str, ...]:
        """As for `Needing`."""
        return (self.fact,)

    def __call__(self, group: RolloutGroup) -> list[float | None]:
        """1 or 0 per rollout."""
        expected = str(fact_of(group, self.fact, "exact_match")).strip()
        return [float(answer_of(rollout, self.after) == expected) for rollout in group.rollouts]
