"""Right answers earn more when short, wrong ones lose less when long.

"Demystifying Long Chain-of-Thought Reasoning", arXiv:2502.03373, C.1 (P-302). The paper takes (2, 1) for right answers,
(-10, 0) for wrong ones and -10 for those that reach the limit (unchecked).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from agrpo.errors import ConfigError
from agrpo.records.group import RolloutGroup
from agrpo.records.score import Unjudged
from agrpo.registry import part
from agrpo.rewards import AsyncReward, Needing, Preparing, Resident, Reward, awaits, rewards

Value = Annotated[float, Field(allow_inf_nan=False)]
Highest = Annotated[float, Field(allow_inf_nan=False, validate_default=True)]


@part
class CosineScaled:
    """`r_L + (r_0 - r_L) (1 + cos(pi L / max_len)) / 2`: from `r_0` for no token to `r_L` for `max_len` of them.

    `L` is what the policy generated in all turns, at most `max_len`. A right answer goes from `max_value_correct` down to
    `min_value_correct`, a wrong one from `min_value_wrong` up to `max_value_wrong`.
    """

    max_len: Annotated[int, Field(ge=1)] = 1000
    """Tokens; usually `engine.max_completion_length`."""
    min_value_wrong: Value = -1.0
    """Of a wrong answer of no token."""
    max_value_wrong: Highest = -0.5
    """Of a wrong answer of `max_len` tokens."""
    min_value_correct: Value = 0.5
    """Of a right answer of `max_len` tokens."""
    max_value_correct: Highest = 1.0
    """Of a right answer of no token."""
    exceed_value: Value | None = None
    """What an answer of `max_len` tokens or more is worth, right or wrong. None: nothing sets it apart."""
    check: str = "accuracy"
    """The reward that says what is right: 1 or more. Where it has nothing to say, neither has this one."""
    check_settings: dict[str, Any] = field(default_factory=dict)
    """Its knobs."""

    whole_group: ClassVar[bool] = False

    @property
    def needed_facts(self) -> Sequence[str]:
        """Those of the check, as for `Needing`."""
        return self._judge.needed_facts if isinstance(self._judge, Needing) else ()

    @field_validator("max_value_wrong", "max_value_correct")
    @classmethod
    def _is_the_higher(cls, value: float, info: ValidationInfo) -> float:
        lower = str(info.field_name).replace("max", "min")
        if value < info.data.get(lower, value):
            raise ValueError(f"expected at least {lower} = {info.data[lower]}")
        return value

    def prepare(self) -> None:
        """Build the check and what it needs. Raises `ConfigError` or `MissingPackage`."""
        if isinstance(self._judge, Preparing):
            self._judge.prepare()

    @cached_property
    def _judge(self) -> Reward:
        if self.check == "cosine_scaled":
            raise ConfigError(
                'check = "cosine_scaled": expected a reward that says 1 of a right answer, such as accuracy'
            )
        judge: Reward | AsyncReward = rewards.build(self.check, self.check_settings)
        if awaits(judge) or judge.whole_group or isinstance(judge, Resident):
            raise ConfigError(f'check = "{self.check}": expected a reward that judges each answer by itself, at once')
        return judge  # pyright: ignore[reportReturnType]

    def unreached(self, max_tokens: int) -> str | None:
        """As for `Measuring`."""
        return (
            f"max_len = {self.max_len}: engine.max_completion_length = {max_tokens} ends every answer before, so that no length "
            "is worth what max_len is; set max_len to that"
            if self.max_len > max_tokens
            else None
        )

    def __call__(self, group: RolloutGroup) -> list[float | Unjudged | None]:
        """One value per rollout, None where the check gives none."""
        checked = zip(group.rollouts, self._judge(group), strict=True)
        return [
            value if value is None or isinstance(value, Unjudged) else self._scaled(len(own.completion_ids), value >= 1)
            for own, value in checked
        ]

    def _scaled(self, length: int, right: bool) -> float:
        if self.exceed_value is not None and length >= self.max_len:
            return self.exceed_value
        first, last = self.max_value_correct, self.min_value_correct
        if not right:
            first, last = self.min_value_wrong, self.max_value_wrong
        share = min(length, self.max_len) / self.max_len
        return last + (first - last) * (1 + math.cos(math.pi * share)) / 2
