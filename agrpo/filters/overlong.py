"""Overlong: groups of which too much was cut. DAPO, arXiv:2503.14476, section 3.4, for whole groups."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agrpo.records.score import ScoredGroup
from agrpo.registry import part


@part
class Overlong:
    """At most `max_share` of a group's rollouts were cut for their length."""

    max_share: Annotated[float, Field(ge=0, lt=1)]
    """Of the rollouts with an answer. 0: a single one that was cut leaves the group out."""

    def __call__(self, group: ScoredGroup) -> bool:
        """Over the rollouts that the engine answered."""
        answered = [cut for cut, tokens in zip(group.truncated, group.num_prompt_tokens, strict=True) if tokens]
        return not answered or sum(answered) / len(answered) <= self.max_share
