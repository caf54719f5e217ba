"""A stage that works until it is asked to end."""

from __future__ import annotations

from tests.stages.stage_examples import work as run

__all__ = ["run"]
