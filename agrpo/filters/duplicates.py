"""Duplicates: groups whose rollouts are all the same, or nearly. What tells them apart then is a reward's chance alone."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agrpo.records.score import ScoredGroup
from agrpo.registry import part


@part
class Duplicates:
    """A group holds at least `min_distinct` different completions, compared token by token."""

    min_distinct: Annotated[int, Field(ge=2)] = 2
    """With 2, only a group of one and the same completion is left out."""

    def __call__(self, group: ScoredGroup) -> bool:
        """Over the rollouts that the engine answered."""
        pairs = zip(group.duplicates, group.num_prompt_tokens, strict=True)
        return sum(bool(tokens) and not again for again, tokens in pairs) >= self.min_distinct
