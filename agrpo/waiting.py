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
    beat: Callable[[str, float], None] | None = None,
) -> T:
    """Poll `ready` until it gives something.

    `what` completes the sentence "waited 30 s for …". `beat` is told the name and the seconds waited so far, at most
    once a second, so that others can see what is waited for. Raises `DeadlineExceeded`, or `Stopped` once `stop` is set.
    """
    began = time.monotonic()
    pause, told = FIRST_PAUSE_SECONDS, began
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
        if beat is not None and now - told >= 1.0:
            told = now
            beat(what, now - began)
        stop.wait(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
