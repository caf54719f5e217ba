"""Rollout loops that fail: in the hook that settings name, by what they give agrpo's own, or by their names."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from agrpo import AsyncRolloutLoop, Rollout, RolloutGroup


class Leaves(AsyncRolloutLoop):
    """Calls `sys.exit`, or raises what a cancelled task does."""

    def _leave(self, hook: str) -> None:
        if self.settings.hook != hook:
            return
        if self.settings.way == "exit":
            sys.exit(3)
        raise KeyboardInterrupt if self.settings.way == "interrupt" else asyncio.CancelledError

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        self._leave("filter_prompt")
        return True

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        self._leave("generate_one")
        return await super().generate_one(prompt, tools, group_id)

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        self._leave("compute_advantages")
        return super().compute_advantages(group)

    async def setup(self) -> None:
        self._leave("setup")

    async def close(self) -> None:
        self._leave("close")


class AsksText(AsyncRolloutLoop):
    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        return await super().generate_one(cast("Any", "4 + 5 ="), tools, group_id)


class Misspelt(AsyncRolloutLoop):
    async def set_up(self) -> None:
        raise AssertionError

    def filter(self, level: int) -> bool:
        """One of its own, which is like no hook enough."""
        return level > 1
