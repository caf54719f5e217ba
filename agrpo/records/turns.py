"""Turns: who gives the engine's servers weights at this moment, the learner that pushes or the generator that loads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerTurn:
    """The word of a learner that pushes versions into servers."""

    attempt: int
    pushing: int | None = None
    """Version that is about to be pushed, from before its record is written until servers have it or the push has failed."""
    pushed: int | None = None
    """Version that was pushed last, whether every server has it or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorTurn:
    """The word of a generator whose servers a learner may push into."""

    incarnation: str
    loading: int | None = None
    """Version that it loads and probes: nobody else gives a server weights meanwhile."""
