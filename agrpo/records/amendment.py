"""An amendment: settings that decide no value of a run, changed when it was resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """Laid over the run's settings, and over every amendment before it."""

    number: int
    """0, 1, 2, … within the run."""
    values: dict[str, Any]
    """By `table.setting`."""
    origins: dict[str, str] = field(default_factory=dict)
    """Where a value came from, by the same keys."""
    written_at: float
    """Unix seconds."""
