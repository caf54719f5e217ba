"""What Prefect shows of a run while it trains, and what it says to it: progress one way, a cancellation the other."""

from __future__ import annotations

import contextvars
import logging
import re
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run

from agrpo.config import load_settings
from agrpo.queue.history import newest_done
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Done

logger = logging.getLogger("agrpo.flows")

STATE_SECONDS = 2.0
PROGRESS_SECONDS = 5.0


class Watch:
    """A thread beside a flow run. Whatever fails in it is said once and fails nothing else."""

    def __init__(self, folder: RunFolder, stop: threading.Event) -> None:
        self.cancelled = False
        """Prefect has asked for the run's end."""
        self._folder = folder
        self._stop = stop
        self._ended = threading.Event()
        self._said: set[str] = set()
        self._artifact: UUID | None = None
        self._document = folder.document()

    def __enter__(self) -> Self:
        # Prefect's calls find the flow run through context variables.
        look = contextvars.copy_context().run
        self._thread = threading.Thread(target=look, args=(self._look,), name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(PROGRESS_SECONDS if kind is None else 1.0)

    def _look(self) -> None:
        shown = 0.0
        while not self._ended.wait(STATE_SECONDS):
            self._try("read the state of this flow run", self._hear)
            if time.monotonic() - shown >= PROGRESS_SECONDS:
                shown = time.monotonic()
                self._try("show the progress of this run", self._show)
        self._try("show the progress of this run", self._show)

    def _try(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            if what not in self._said:
                logger.warning("cannot %s: %s: %s; the run goes on", what, type(error).__name__, error)
            self._said.add(what)

    def _hear(self) -> None:
        """A flow that no worker started gets no signal when it is cancelled."""
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(flow_run.id)).state
        if state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED):
            self.cancelled = True
            self._stop.set()

    def _show(self) -> None:
        done = newest_done(self._folder)
        if done is None:
            return
        reward = done.metrics.get("reward")
        told = f"step {done.step}" + ("" if reward is None else f", reward {reward:.3f}")
        percent = 100.0 * self._share(done)
        if self._artifact is None:
            self._artifact = cast(UUID, create_progress_artifact(percent, key=self._key(), description=told))
        else:
            update_progress_artifact(self._artifact, percent, description=told)

    def _key(self) -> str:
        """Artifacts of one run, also of a later flow run that goes on with it, are versions of one key."""
        return re.sub("[^a-z0-9-]+", "-", f"progress-{self._document['name']}".lower())

    def _share(self, done: Done) -> float:
        end = load_settings(self._document).tree["stop"]
        if end.get("max_steps"):
            return min(1.0, done.step / end["max_steps"])
        return min(1.0, done.num_prompts / (self._document["prompts_per_epoch"] * end["epochs"]))
