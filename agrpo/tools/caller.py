"""Calling what a user wrote: on a thread or on the loop, within a deadline.

What is written with `def` runs on threads, at most so many at once; what is written with `async def` runs on the loop and
must not block it. A thread cannot be ended: one that outlives its deadline keeps its place until it returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from agrpo.coroutines import HELD_SECONDS, Timed
from agrpo.errors import ToolError

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 1.0
"""How long a function on the loop may go on after it was cancelled before that is said."""

TICKET: ContextVar[int | None] = ContextVar("TICKET", default=None)
"""The group for which a task of the loop works."""


class Outcome(NamedTuple):
    """What a function returned or raised."""

    value: Any = None
    error: BaseException | None = None


class Underway(NamedTuple):
    """A call that has not come back."""

    name: str
    """As messages call it."""
    seconds: float
    """Since it was called."""


@dataclass(slots=True)
class _Thread:
    """How one call on a thread stands."""

    is_running: bool = False
    is_hanging: bool = False
    """It has outlived its deadline."""


class Caller:
    """The threads that the functions of a run share. All its methods run on one asyncio loop."""

    def __init__(self, *, num_threads: int) -> None:
        self._num_threads = num_threads
        self._free = asyncio.Semaphore(num_threads)
        self._hanging: Counter[str] = Counter()
        """Threads that have outlived their deadline, by what they call."""
        self._underway: dict[object, tuple[int | None, str, float]] = {}
        """Calls that are waited for: for which ticket, by which name, since when."""
        self._unending: set[str] = set()
        """Functions on the loop that went on after they were cancelled."""
        self._held: dict[str, float] = {}
        """The longest that each function has held the loop, as far as it was told."""

    def longest(self, ticket: int) -> Underway | None:
        """The call of this group that is waited for longest. None: it waits for none."""
        calls = ((since, name) for own, name, since in self._underway.values() if own == ticket)
        since, name = min(calls, default=(0.0, None))
        return None if name is None else Underway(name, time.monotonic() - since)

    async def call(
        self, name: str, function: Callable[..., Any], arguments: Mapping[str, Any], *, is_async: bool, seconds: float
    ) -> Outcome | None:
        """What came of it; None: nothing within `seconds`. `name`: as messages call it.

        Raises `ToolError` where every thread is held by a call that has outlived its deadline.
        """
        thread = _Thread()
        work = (
            self._on_the_loop(name, function, arguments)
            if is_async
            else self._on_a_thread(name, function, arguments, thread)
        )
        task = asyncio.ensure_future(work)
        self._underway[task] = (TICKET.get(), name, time.monotonic())
        try:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                if thread.is_running:
                    thread.is_hanging = True
                    self._note_hanging(name, seconds)
                return None
            return Outcome(error=RuntimeError("it was cancelled")) if task.cancelled() else task.result()
        finally:
            del self._underway[task]
            if not task.done():
                task.cancel()
                if is_async:
                    asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._note_unending, name, task)

    async def _on_the_loop(self, name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Outcome:
        try:
            return Outcome(value=await Timed(function(**arguments), lambda seconds: self._note_held(name, seconds)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a SystemExit would end the loop, and the run with it
            return Outcome(error=error)

    async def _on_a_thread(
        self, name: str, function: Callable[..., Any], arguments: Mapping[str, Any], thread: _Thread
    ) -> Outcome:
        self._refuse_if_all_hang()
        await self._free.acquire()
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        ended: asyncio.Future[Outcome] = loop.create_future()

        def end(outcome: Outcome) -> None:
            self._free.release()
            self._hanging[name] -= thread.is_hanging
            if not ended.done():
                ended.set_result(outcome)

        def work() -> None:
            try:
                outcome = Outcome(value=context.run(function, **arguments))
            except BaseException as error:
                outcome = Outcome(error=error)
            with suppress(RuntimeError):  # the loop has ended meanwhile, and nobody waits
                loop.call_soon_threadsafe(end, outcome)

        # A daemon: it must not keep a process from ending.
        try:
            threading.Thread(target=work, name=name, daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads
            self._free.release()
            return Outcome(error=error)
        thread.is_running = True
        return await ended

    def _note_hanging(self, name: str, seconds: float) -> None:
        self._hanging[name] += 1
        logger.warning(
            "%s has not returned within %g s; it keeps one of %d threads until it does (%d do)",
            *(name, seconds, self._num_threads, self._hanging.total()),
        )

    def _note_unending(self, name: str, task: asyncio.Task[Outcome]) -> None:
        """Told once for each function."""
        if task.done() or name in self._unending:
            return
        self._unending.add(name)
        logger.warning(
            "%s goes on %g s after it was cancelled, and the generator's end waits for it. Let CancelledError pass in it",
            *(name, CANCEL_SECONDS),
        )

    def _note_held(self, name: str, seconds: float) -> None:
        """Told the first time, and again where it is twice as long."""
        if seconds < max(HELD_SECONDS, 2 * self._held.get(name, 0.0)):
            return
        self._held[name] = seconds
        logger.warning(
            "%s held the loop for %.1f s: every other rollout stood still meanwhile. Await in it what takes time, or write it "
            "with def, so that it runs on a thread",
            *(name, seconds),
        )

    def _refuse_if_all_hang(self) -> None:
        if self._hanging.total() < self._num_threads:
            return
        who = ", ".join(f"{name} ({count} times)" for name, count in self._hanging.most_common() if count > 0)
        raise ToolError(
            f"all {self._num_threads} threads (async.max_concurrent_rollouts) are held by calls that have outlived their "
            f"deadline and not returned: {who}. A thread cannot be ended from outside: mend them, such as with a time limit "
            "of their own, then `agrpo resume` this run"
        )


__all__ = ["TICKET", "Caller", "Outcome", "Underway"]
