"""Telling a run as it goes on where no terminal shows it: one plain line per step, per warning, and per stall."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from agrpo.instruments.live.looking import Look, Onlooker
from agrpo.instruments.progress import max_steps
from agrpo.instruments.wording import duration
from agrpo.metrics.line import progress_line
from agrpo.queue.run_folder import RunFolder

LOOK_SECONDS = 1.0
STALL_LOOK_SECONDS = 5.0
"""Between looks beside a run whose stages print their steps themselves."""


def tell(folder: RunFolder, say: Callable[[str], None]) -> Look:
    """Say the steps that are done and every one that comes, until the run has ended. Returns the last look."""
    onlooker, pause, last = Onlooker(folder), threading.Event(), max_steps(folder.document())
    stalls = Stalls()
    while True:
        look = onlooker.look(time.time())
        for point in look.new_points:
            say(progress_line(point.step, point.metrics, last))
        for notice in look.new_notices:
            say(str(notice))
        if look.ended:
            return look
        if stall := stalls.heard(look):
            say(stall)
        pause.wait(LOOK_SECONDS)


class Stalls:
    """What to say of a step that does not come: once it is late, and again whenever it is twice as late."""

    def __init__(self) -> None:
        self._moved_at: float | None = None
        self._said_at_seconds = 0.0

    def heard(self, look: Look) -> str | None:
        """A line, if it is time for one."""
        if look.moved_at != self._moved_at:
            self._moved_at, self._said_at_seconds = look.moved_at, 0.0
        if not look.late or look.idle_seconds < 2 * self._said_at_seconds:
            return None
        self._said_at_seconds = look.idle_seconds
        return f"no step for {duration(look.idle_seconds)}: {_holdup(look)}"


class StallTeller:
    """Says stalls while the block runs, from a thread of its own. One that fails says so and ends alone."""

    def __init__(self, folder: RunFolder, say: Callable[[str], None], *, since: float = 0.0) -> None:
        """`since`: see `Onlooker`."""
        self._onlooker = Onlooker(folder, since=since)
        self._say = say
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join(STALL_LOOK_SECONDS)

    def _follow(self) -> None:
        stalls = Stalls()
        try:
            while not self._closing.wait(STALL_LOOK_SECONDS):
                if stall := stalls.heard(self._onlooker.look(time.time())):
                    self._say(stall)
        except Exception as error:
            self._say(f"warning: stalls are told no more: {type(error).__name__}: {error}")


def _holdup(look: Look) -> str:
    """The stages that are silent; else what the learner waits for."""
    silent = [stage.name for stage in look.stages if stage.silent]
    if silent:
        return f"{', '.join(silent)} silent"
    learner = next((stage for stage in look.stages if stage.name == "learner"), None)
    if learner is None or not learner.spoken:
        return "learner has not spoken yet"
    return "learner works" if learner.waiting_for is None else f"learner waits for {learner.waiting_for}"
