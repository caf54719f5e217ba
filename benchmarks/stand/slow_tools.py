"""Tools and an environment that take their time and no processor: what a rollout waits for is theirs alone."""

from __future__ import annotations

import asyncio
import time


def look_up(seconds: float) -> str:
    """Look something up, on a thread.

    Args:
        seconds: How long it takes.
    """
    time.sleep(seconds)
    return "nothing was found"


async def fetch(seconds: float) -> str:
    """Fetch something, on the loop.

    Args:
        seconds: How long it takes.
    """
    await asyncio.sleep(seconds)
    return "nothing was found"


class Desk:
    """An environment with a slow method, and a state that tells whether anybody else was in it."""

    def __init__(self) -> None:
        self.num_asked = 0

    def reset(self) -> None:
        self.num_asked = 0

    def ask(self, seconds: float) -> str:
        """Ask the one at the desk.

        Args:
            seconds: How long it takes.
        """
        time.sleep(seconds)
        self.num_asked += 1
        return f"asked {self.num_asked} times"

    def get_reward(self) -> float:
        return float(self.num_asked)
