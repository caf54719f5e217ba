"""Waiting with a name and a deadline: the only way a stage waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from agrpo.errors import DeadlineExceeded, Stopped

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.002
LONGEST_PAUSE_SECONDS = 0.1


def wait_for(
    what: str,
    ready: Callable[[], T | None],
    *,
    deadline_seconds: float,
    stop: threading.Event,
) -> T:
    """Poll `ready` until it gives something.

    `what` completes the sentence "waited 30 s for …". Raises `DeadlineExceeded`, or `Stopped` once `stop` is set.
    """
    began = time.monotonic()
    pause = FIRST_PAUSE_SECONDS
    while True:
        if stop.is_set():
            raise Stopped(f"asked to stop while waiting for {what}")
        value = ready()
        if value is not None:
            return value
        now = time.monotonic()
        if now - began > deadline_seconds:
            raise DeadlineExceeded(
                f"waited {now - began:.0f} s for {what}; the limit is {deadline_seconds:.0f} s (stop.stall_seconds)"
            )
        stop.wait(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
