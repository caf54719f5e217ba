"""Coroutines of the user's on a loop of agrpo's: how long each holds it, and who cancelled one that ended so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

HELD_SECONDS = 1.0
"""How long a coroutine may go on without awaiting before that is said."""


def is_being_cancelled() -> bool:
    """Whether somebody cancels the task that runs; else a `CancelledError` in it was raised by what it calls."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Timed:
    """A coroutine of which each step, from one wait to the next, is timed."""

    def __init__(self, work: Coroutine[Any, Any, Any], told: Callable[[float], None]) -> None:
        self._work = work
        self._told = told

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            step = partial(self._work.send, None)
            while True:
                began = time.monotonic()
                try:
                    waits_for = step()
                except StopIteration as end:
                    return end.value
                finally:
                    self._told(time.monotonic() - began)
                try:
                    step = partial(self._work.send, (yield waits_for))
                except BaseException as error:
                    step = partial(self._work.throw, error)
        finally:
            self._work.close()


__all__ = ["HELD_SECONDS", "Timed", "is_being_cancelled"]
