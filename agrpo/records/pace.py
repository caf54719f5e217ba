"""Pace: what ran beside a group when it began, and what had held it back. A fact of the group, like its tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the generator was doing when it began a group."""

    concurrency: int
    """Rollouts in flight to the engine, the group's own included."""
    concurrency_cap: int
    """Most rollouts that could be in flight."""
    backpressure_seconds: float | None = None
    """How long the group could not begin because run-ahead was used up; None: it did not wait."""
    interval_seconds: float = 0.0
    """Since the generator's group before ended, or since its first version was served."""
