"""Pace: what ran beside a group, what had held it back, and what the servers said meanwhile. A fact of the group."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Limit(StrEnum):
    """What may keep the next group from being started (A-090)."""

    RUN_AHEAD = "run-ahead"
    """It would be too far ahead of training, in versions or in tokens."""
    LOAD = "load cap"
    """As many rollouts are in flight as the engine's servers bear."""
    CEILING = "hard ceiling"
    """As many are in flight as `async.max_concurrent_rollouts` allows."""
    SCORING = "scoring queue"
    """As many groups wait for scores as `async.scoring_queue` allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a generator stands to its limits at one moment."""

    in_flight: int
    """Rollouts in flight to the engine."""
    cap: int
    """Most that may be, by the servers' load."""
    ceiling: int
    """Most that may be in any case."""
    unscored: int
    """Groups that it has published and that have no scores yet, as far as it has looked."""
    queue: int
    """Most that may be."""
    held_by: str | None = None
    """The `Limit` that keeps the next group from being started. None: none does."""
    held_seconds: float = 0.0
    """For how long it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the generator was doing when it began a group, and what its engine's servers said until the group's end."""

    concurrency: int
    """Rollouts in flight to the engine, the group's own included."""
    concurrency_cap: int
    """Most rollouts that could be in flight."""
    backpressure_seconds: float | None = None
    """How long the group could not begin because run-ahead was used up; None: it did not wait."""
    interval_seconds: float = 0.0
    """Since the generator's group before ended, or since its first version was served."""
    load_wait_seconds: float | None = None
    """How long the group could not begin because the load cap was reached, below the hard ceiling; None: it did not wait."""
    ceiling_wait_seconds: float | None = None
    """The same of the hard ceiling."""
    score_block_seconds: float | None = None
    """The same of a full scoring queue."""
    num_polls: int = 0
    """How often the servers spoke in that interval; 0: the rest but `retries` is not known."""
    kv_cache_usage: float | None = None
    """Share of the KV cache in use of the fullest server, mean over these polls."""
    running_requests: float | None = None
    """Being decoded, over all servers, mean over these polls."""
    queued_requests: float | None = None
    """Accepted and not scheduled, over all servers, mean over these polls."""
    preemptions: int | None = None
    """By how much their number rose from poll to poll."""
    retries: int | None = None
    """Requests asked again in that interval. The engine counts them, so it is known where servers do not speak; None: it has
    none, or was not asked."""
