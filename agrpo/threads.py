"""Threads beside an asyncio loop on which functions of the user's run too.

`asyncio.to_thread` and the loop itself share the loop's default executor: a few threads, which calls of the user's may all
hold. What a run needs to go on does not wait for them, and what hangs there does not hold up the loop's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

OWN_THREADS = 16
"""They wait for a disk or a store, and compute little."""

_own = ThreadPoolExecutor(OWN_THREADS, thread_name_prefix="agrpo")


async def on_thread(function: Callable[[], T]) -> T:
    """What `function` gives, on a thread that no function of the user's runs on. It is to wait for a store only."""
    return await asyncio.get_running_loop().run_in_executor(_own, function)


class UnawaitedThreads(ThreadPoolExecutor):
    """A default executor at whose end nobody waits: `asyncio.run` would, without a limit, before an error is told."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As the executor's, but it returns at once, and what no thread has begun is not begun any more."""
        super().shutdown(wait=False, cancel_futures=True)


__all__ = ["UnawaitedThreads", "on_thread"]
