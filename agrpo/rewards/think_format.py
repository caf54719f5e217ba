"""Whether the answer is preceded by its reasoning, between two marks (P-305)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from agrpo.records.group import RolloutGroup
from agrpo.records.rollout import Rollout
from agrpo.registry import part

Mark = Annotated[str, Field(min_length=1)]
Closing = Annotated[str, Field(min_length=1, validate_default=True)]


@part
class ThinkFormat:
    """1 if the last assistant message is one block of reasoning and then an answer, 0 if not.

    The block begins the message, and neither mark occurs a second time. White space around either does not count; the
    answer may not be white space alone.
    """

    opening: Mark = "<think>"
    """What begins the reasoning."""
    closing: Closing = "</think>"
    """What ends it. Neither mark may be a part of the other."""
    prompt_opens: bool = False
    """Whether the chat template itself ends a prompt with `opening`, so that a completion may not say it again."""

    whole_group: ClassVar[bool] = False

    @field_validator("closing")
    @classmethod
    def _can_be_told_apart(cls, value: str, info: ValidationInfo) -> str:
        opening = info.data.get("opening")
        if opening is not None and (value in opening or opening in value):
            raise ValueError(f'expected a mark that is no part of opening = "{opening}", nor has it inside')
        return value

    def __call__(self, group: RolloutGroup) -> list[float | None]:
        """1 or 0 per rollout."""
        return [float(self._holds(_last_message(rollout))) for rollout in group.rollouts]

    def _holds(self, text: str) -> bool:
        before, closed, answer = text.partition(self.closing)
        if not self.prompt_opens:
            outside, opened, before = before.partition(self.opening)
            if outside.strip() or not opened:
                return False
        again = self.opening in before or self.opening in answer or self.closing in answer
        return bool(closed and answer.strip()) and not again


def _last_message(rollout: Rollout) -> str:
    for message in reversed(rollout.completion):
        if message.get("role") == "assistant":
            return str(message.get("content") or "")
    return ""
