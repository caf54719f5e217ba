"""The thread that decodes. What it owns is touched by it alone; others leave it messages."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice, takewhile
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

from agrpo.engines.decoding.calls import Call, Row
from agrpo.engines.decoding.cohort import Cohort
from agrpo.engines.decoding.model import NOT_LOADED, Model
from agrpo.errors import EngineError

T = TypeVar("T")
logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.002
"""An idle worker begins once no request came for this long: requests sent one after another then share a cohort."""
CROWD = 2
"""Most running rows per waiting row at which the waiting ones begin. Groups that are renewed one by one would otherwise
end up each in a cohort of its own: 64 groups of 8 then decode at less than half the speed."""


class Worker:
    """Steps the live cohorts in turn, and does between two steps what it was asked to."""

    def __init__(self, model: Model, *, threads: int, batch_rollouts: int) -> None:
        self._model = model
        self._threads = threads
        self._batch_rollouts = batch_rollouts
        self._messages: SimpleQueue[_Message] = SimpleQueue()
        self._waiting: deque[Row] = deque()
        self._cohorts: deque[Cohort] = deque()
        self._closing = False
        self._refusal: str | None = None
        self._door = threading.Lock()
        self._ended: Future[None] = Future()
        threading.Thread(target=self._run, name="agrpo-decoding", daemon=True).start()

    def submit(self, call: Call) -> None:
        """Have a call answered. Its future fails with `EngineError` where it cannot be."""
        self._leave(_Message(lambda: self._accept(call), call.fail))

    def between_steps(self, work: Callable[[], T]) -> Future[T]:
        """The result of `work`, which runs while nothing is decoded."""
        result: Future[T] = Future()
        self._leave(_Message(lambda: _do(work, result), lambda error: _fail(result, error)))
        return result

    def close(self) -> Future[None]:
        """End after the step that is running; what is not answered by then fails. The future is done at the end."""
        self._leave(_Message(self._stop, lambda _: None))
        return self._ended

    def _leave(self, message: _Message) -> None:
        with self._door:
            if self._refusal is None:
                self._messages.put(message)
                return
        message.refuse(EngineError(self._refusal))

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        reason = "the engine was closed"
        try:
            with torch.inference_mode():
                while not self._closing:
                    self._read_messages()
                    self._admit()
                    self._step_next_cohort()
        except Exception as error:
            logger.exception("the decoding thread failed")
            reason = f"the engine's decoding thread failed: {type(error).__name__}: {error}"
        finally:
            self._refuse_all(reason)
            self._ended.set_result(None)

    def _refuse_all(self, reason: str) -> None:
        with self._door:
            self._refusal = reason
        while not self._messages.empty():
            self._messages.get().refuse(EngineError(reason))
        for call in [row.call for row in self._waiting] + [call for cohort in self._cohorts for call in cohort.calls]:
            call.fail(EngineError(f"{reason} before it answered"))

    def _read_messages(self) -> None:
        idle = not (self._waiting or self._cohorts)
        try:
            if idle:
                self._messages.get().act()
            while not self._closing:
                self._messages.get(timeout=GATHER_SECONDS if idle else 0).act()
        except Empty:
            return

    def _accept(self, call: Call) -> None:
        if self._model.version == NOT_LOADED:
            call.fail(EngineError("no weights were loaded yet; load a version before asking for completions"))
        else:
            self._waiting.extend(call.rows)

    def _stop(self) -> None:
        self._closing = True

    def _admit(self) -> None:
        """Make a cohort of what waits, where there is room."""
        rows = self._admissible()
        for _ in rows:
            self._waiting.popleft()
        wanted = [row for row in rows if not row.call.settle()]
        if wanted:
            self._cohorts.append(Cohort(self._model, wanted))

    def _admissible(self) -> list[Row]:
        """Rows at the head of the queue that may begin now. A reproducible call neither shares nor overlaps."""
        if not self._waiting:
            return []
        first = self._waiting[0].call
        live = [call for cohort in self._cohorts for call in cohort.calls]
        if live and (first.reproducible or any(call.reproducible for call in live)):
            return []
        together = takewhile(
            lambda row: row.call is first if first.reproducible else not row.call.reproducible, self._waiting
        )
        running = sum(cohort.num_running for cohort in self._cohorts)
        rows = list(islice(together, self._batch_rollouts - running))
        return rows if running <= CROWD * len(rows) else []

    def _step_next_cohort(self) -> None:
        while self._cohorts and not self._cohorts[0].num_running:
            self._cohorts.popleft()
        if self._cohorts:
            self._step(self._cohorts[0])
            self._cohorts.rotate(-1)

    def _step(self, cohort: Cohort) -> None:
        try:
            if self._model.version == NOT_LOADED:
                raise EngineError("the last load of weights broke off half-way")
            cohort.step()
        except Exception as error:
            num_requests = cohort.num_running
            for call in cohort.calls:
                call.fail(_failed(error, num_requests))
        cohort.settle()


@dataclass(frozen=True, slots=True)
class _Message:
    act: Callable[[], None]
    refuse: Callable[[EngineError], None]


def _do(work: Callable[[], T], result: Future[T]) -> None:
    if not result.set_running_or_notify_cancel():
        return
    try:
        result.set_result(work())
    except Exception as error:
        result.set_exception(error)


def _fail(result: Future[T], error: EngineError) -> None:
    if result.set_running_or_notify_cancel():
        result.set_exception(error)


def _failed(error: Exception, num_requests: int) -> EngineError:
    failure = EngineError(f"decoding {num_requests} requests failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
