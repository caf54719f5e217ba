"""Lineage: which attempt's steps are the run's history, where a later attempt joined an older one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agrpo.records.progress import Base


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Steps `first` to `last` of one attempt belong to the history. `last` None: all it has, it is the newest."""

    attempt: int
    first: int
    last: int | None


def lineage(bases: Mapping[int, Base]) -> list[Segment]:
    """The chain of the highest base that is not void, oldest first. Empty before any base is written."""
    living = [number for number, base in bases.items() if not base.void]
    segments: list[Segment] = []
    attempt, last = (max(living) if living else None), None
    while attempt is not None:
        base = bases[attempt]
        if last is None or last > base.base_step:
            segments.append(Segment(attempt=attempt, first=base.base_step + 1, last=last))
        last = base.base_step if last is None else min(last, base.base_step)
        attempt = base.parent
    return segments[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An attempt of the chain, whether it has steps of its own or not."""

    attempt: int
    last: int | None
    """Last of its steps and checkpoints that counts; None: all it has."""
    through: int | None
    """Last step whose version counts, and what was sampled by it; None: all of them. Lies beyond `last` where the steps
    between were carried out again with the same groups."""


def members(bases: Mapping[int, Base]) -> list[Member]:
    """Every attempt of the chain, newest first.

    One that died before a step of its own may still have published what its parent owed, or written a checkpoint.
    """
    living = [number for number, base in bases.items() if not base.void]
    found: list[Member] = []
    attempt, last, through = (max(living) if living else None), None, None
    while attempt is not None:
        found.append(Member(attempt=attempt, last=last, through=through))
        base = bases[attempt]
        last = base.base_step if last is None else min(last, base.base_step)
        through = base.adopted_through if through is None else min(through, base.adopted_through)
        attempt = base.parent
    return found


def attempt_of(segments: list[Segment], step: int) -> int | None:
    """The attempt whose record of `step` counts; None before the first and for steps not reached by any bound."""
    for segment in segments:
        if segment.first <= step and (segment.last is None or step <= segment.last):
            return segment.attempt
    return None
