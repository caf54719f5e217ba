"""Filters of a user's, and what is none; and a reward beside another."""

from __future__ import annotations

from typing import Any

from agrpo.records.score import ScoredGroup
from agrpo.registry import part


@part
class EvenTickets:
    """A useful one."""

    every: int = 2

    def __call__(self, group: ScoredGroup) -> bool:
        return group.ticket % self.every == 0


class Remembers:
    """A plain class."""

    def __call__(self, group: ScoredGroup) -> bool:
        return True


@part
class Undecided:
    def __call__(self, group: ScoredGroup) -> bool:
        return None  # type: ignore[return-value]


@part
class Fails:
    def __call__(self, group: ScoredGroup) -> bool:
        raise KeyError("level")


@part
class AsksForMore:
    def __call__(self, group: ScoredGroup, step: int) -> bool:
        return step > 0


def longest(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Sums of tokens, which differ where lengths do not."""
    return [float(sum(ids) % 13) for ids in completion_ids]
