"""The scorer that a dataset brings itself (Reasoning Gym, https://github.com/open-thought/reasoning-gym)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import ClassVar

from agrpo.errors import MissingPackage
from agrpo.records.group import RolloutGroup
from agrpo.registry import part
from agrpo.rewards import answer_of, fact_of


@part
class ReasoningGym:
    """Judges the text after the last `</think>` by the dataset's own `score_answer`.

    Facts: `reasoning_gym_dataset` (a dataset's name) and `reasoning_gym_entry` (the entry as JSON).
    """

    binary: bool = False
    """1 for a full score and 0 for any other. Most datasets pay a little for a wrong answer."""

    whole_group: ClassVar[bool] = False
    needed_facts: ClassVar[tuple[str, ...]] = ("reasoning_gym_dataset", "reasoning_gym_entry")

    def prepare(self) -> None:
        """Import the package, which takes a second."""
        try:
            importlib.import_module("reasoning_gym")
        except ImportError as error:
            raise MissingPackage('reward "reasoning_gym" needs reasoning-gym: pip install reasoning-gym') from error

    def __call__(self, group: RolloutGroup) -> list[float | None]:
        """The dataset's score, from 0 to 1."""
        from reasoning_gym.factory import get_score_answer_fn

        entry = json.loads(fact_of(group, "reasoning_gym_entry", "reasoning_gym"))
        score: Callable[..., float] = get_score_answer_fn(fact_of(group, "reasoning_gym_dataset", "reasoning_gym"))
        values = [float(score(answer=answer_of(rollout), entry=entry)) for rollout in group.rollouts]
        return [float(value >= 1.0) for value in values] if self.binary else [*values]
