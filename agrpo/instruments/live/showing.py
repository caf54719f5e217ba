"""Keeping a terminal up to date with a run, in a thread of its own."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from agrpo.instruments.live.drawing import Drawing
from agrpo.instruments.live.looking import Look, Onlooker
from agrpo.queue.run_folder import RunFolder

REFRESH_SECONDS = 1.0
LAST_LOOK_SECONDS = 5.0
"""Longest wait for the look that is under way when the view ends."""


def can_show() -> bool:
    """Whether standard output is a terminal whose lines can be drawn again."""
    console = Console()
    return sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal


class LiveView:
    """The live view while the block runs. What else is printed meanwhile appears above it.

    A view that fails ends alone: `ended` is set, `error` says why, and the run goes on.
    """

    def __init__(self, folder: RunFolder, *, since: float = 0.0, console: Console | None = None) -> None:
        """`since`: see `Onlooker`."""
        self.ended = threading.Event()
        """The run has ended, or the view has failed."""
        self.error: Exception | None = None
        self.look: Look | None = None
        """The newest."""
        self._onlooker = Onlooker(folder, since=since)
        self._live = Live(console=console, auto_refresh=False)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="live view", daemon=True)

    def __enter__(self) -> Self:
        self._live.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join(LAST_LOOK_SECONDS if kind is None else REFRESH_SECONDS)
        self._live.stop()

    def _follow(self) -> None:
        try:
            while not self._closing.is_set():
                self._show(self._onlooker.look(time.time()))
                self._closing.wait(REFRESH_SECONDS)
            # Whoever closes the view of a run has seen it end.
            self._show(replace(self._onlooker.look(time.time()), ended=True))
        except Exception as error:
            self.error = error
            self.ended.set()

    def _show(self, look: Look) -> None:
        self.look = look
        self._live.update(Drawing(look), refresh=True)
        if look.ended:
            self.ended.set()
