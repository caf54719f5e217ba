"""Pressure: what the servers of an engine say of their load at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Read from the engine's servers at one moment."""

    kv_usage: float | None
    """Share of the KV cache in use, 0 to 1, of the fullest server. None: they do not say how full they are, and what
    follows but `retries` is not known either."""
    running: int = 0
    """Requests being decoded, over all servers."""
    queued: int = 0
    """Requests accepted and not scheduled, over all servers."""
    preemptions: int = 0
    """Over all servers, each since it was first asked; it only grows."""
    cache_tokens: int | None = None
    """What the KV caches of all servers hold. None: not said."""
    max_model_len: int | None = None
    """Most tokens of a prompt and its completion together. None: not said."""
    retries: int = 0
    """Requests that were asked again since the engine began. The engine counts them itself."""
    is_new: bool = True
    """False: no server could be asked, and all but `retries` is as they said it last."""
