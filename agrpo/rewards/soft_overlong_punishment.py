"""A growing penalty on answers that near the limit of their length. DAPO, arXiv:2503.14476, section 3.4 (P-301)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from agrpo.records.group import RolloutGroup
from agrpo.registry import part


@part
class SoftOverlongPunishment:
    """From 0 down to -1 over the last `soft_punish_cache` tokens before `max_completion_len`. Added to other rewards.

    The length is that of all turns: every token the policy generated, its end included.
    """

    max_completion_len: Annotated[int, Field(ge=1)]
    """Tokens from which the whole penalty is due; usually `engine.max_completion_length`."""
    soft_punish_cache: Annotated[int, Field(ge=1)]
    """Tokens before that over which it grows. At most `max_completion_len`."""

    whole_group: ClassVar[bool] = False

    @field_validator("soft_punish_cache")
    @classmethod
    def _fits(cls, value: int, info: ValidationInfo) -> int:
        longest = info.data.get("max_completion_len", value)
        if value > longest:
            raise ValueError(f"longer than a whole answer; expected at most max_completion_len = {longest}")
        return value

    def unreached(self, max_tokens: int) -> str | None:
        """As for `Measuring`."""
        free = self.max_completion_len - self.soft_punish_cache
        return (
            f"max_completion_len = {self.max_completion_len}: the penalty begins beyond {free} tokens, and "
            f"engine.max_completion_length = {max_tokens} ends every answer before; set max_completion_len to that"
            if free >= max_tokens
            else None
        )

    def __call__(self, group: RolloutGroup) -> list[float | None]:
        """A penalty from -1 to 0 per rollout."""
        return [self._penalty(len(rollout.completion_ids)) for rollout in group.rollouts]

    def _penalty(self, length: int) -> float:
        over = length - (self.max_completion_len - self.soft_punish_cache)
        return -min(max(over / self.soft_punish_cache, 0.0), 1.0) or 0.0
