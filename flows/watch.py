"""The thread beside a flow run: it hears from Prefect whether the run is to end, and tells how the run goes.

Whatever fails in it is said once and fails nothing else. It holds up the end of the run by `LAST_WORDS_SECONDS` at most,
however slow Prefect's API is.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Self
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from agrpo.queue.run_folder import RunFolder
from flows.show import Show

logger = logging.getLogger("agrpo.flows")

STATE_SECONDS = 2.0
REQUEST_SECONDS = 4.0
"""Longest wait for one answer of the API."""
LAST_WORDS_SECONDS = 5.0
CUT_SHORT_SECONDS = 1.0
"""Instead of `LAST_WORDS_SECONDS`, where the run ends with an error."""


class Watch:
    """A context manager. Enter it before the stages start; `stages` are those that run here."""

    def __init__(self, folder: RunFolder, stop: threading.Event, stages: Iterable[str] = ()) -> None:
        self.cancelled = False
        """Prefect has asked for the run's end."""
        self._stop = stop
        self._ended = threading.Event()
        self._said: set[str] = set()
        self._opened = ExitStack()
        self._show = Show(folder, stages)

    def __enter__(self) -> Self:
        # Prefect's calls find the flow run through context variables.
        look = contextvars.copy_context().run
        self._thread = threading.Thread(target=look, args=(self._look,), name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(LAST_WORDS_SECONDS if kind is None else CUT_SHORT_SECONDS)

    def _look(self) -> None:
        """Until the end, and once more.

        An API that does not answer is asked once a look and told nothing: every event would wait for it, and the end of
        this process for all of them.
        """
        ended = False
        # Here alone, a question that fails is asked again by the next look, not by the client for a minute.
        with self._opened, temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            while not ended:
                ended = self._ended.wait(STATE_SECONDS)
                if self._try("read the state of this flow run", self._hear):
                    self._try("show this run", lambda client, last=ended: self._tell(client, last=last))

    def _tell(self, client: SyncPrefectClient, *, last: bool) -> None:
        """All that is due; after what took long, the state of the flow run is asked for again."""
        heard = time.monotonic()
        for what, act in self._show.due(UUID(flow_run.id), heard, last=last).items():
            if time.monotonic() - heard >= STATE_SECONDS:
                if not self._try("read the state of this flow run", self._hear):
                    return
                heard = time.monotonic()
            self._try(what, act)

    @cached_property
    def _client(self) -> SyncPrefectClient:
        """Opened once: that takes thirty milliseconds of a core, each question one."""
        return self._opened.enter_context(get_client(sync_client=True, httpx_settings={"timeout": REQUEST_SECONDS}))

    def _try(self, what: str, act: Callable[[SyncPrefectClient], None]) -> bool:
        """Whether it worked."""
        try:
            act(self._client)
        except Exception as error:
            if what not in self._said:
                logger.warning("cannot %s: %s: %s; the run goes on", what, type(error).__name__, error)
            self._said.add(what)
            return False
        return True

    def _hear(self, client: SyncPrefectClient) -> None:
        """A flow that no worker started gets no signal when it is cancelled."""
        state = client.read_flow_run(UUID(flow_run.id)).state
        if state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED):
            self.cancelled = self.cancelled or not self._ended.is_set()
            self._stop.set()
