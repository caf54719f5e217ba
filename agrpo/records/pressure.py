"""Pressure: what the servers of an engine say of their load at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Read from the engine's servers at one moment."""

    kv_usage: float
    """Share of the KV cache in use, 0 to 1, of the fullest server."""
    running: int
    """Requests being decoded, over all servers."""
    queued: int
    """Requests accepted and not scheduled, over all servers."""
    preemptions: int
    """Over all servers, since the engine first asked them; it only grows."""
    cache_tokens: int | None = None
    """What the KV caches of all servers hold. None: not said."""
    max_model_len: int | None = None
    """Most tokens of a prompt and its completion together. None: not said."""
    retries: int = 0
    """Requests that were asked again since the engine began."""
