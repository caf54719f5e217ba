"""The supervisor's own words in the run's folder: which stages it started, started again, and lost.

The recorder reads them into the table `events`, beside what the stages say of themselves.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.stages.context import new_incarnation

logger = logging.getLogger("agrpo.flows")

SUPERVISOR = "supervisor"
"""Begins the name of its event streams."""


class SupervisorEvents:
    """The event stream of one supervisor, written by the threads that watch its stages. Called to write one event."""

    def __init__(self, folder: RunFolder) -> None:
        self._stream = EventStream(folder, new_incarnation(SUPERVISOR))
        self._lock = threading.Lock()

    def __call__(self, kind: str, payload: dict[str, Any]) -> None:
        """Write it. Where that fails, say so: a stage is not to end because its start cannot be told."""
        try:
            with self._lock:
                self._stream.write(kind, **payload)
        except Exception as error:
            logger.warning("%s %s is not recorded: %s: %s", kind, payload, type(error).__name__, error)
