"""Following a run from a terminal while its stages work."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from agrpo.cli.printing import say
from agrpo.errors import Stopped
from agrpo.log_line import read_line

PlainOption = Annotated[
    bool,
    typer.Option(
        "--plain", help="One plain line per step instead of the live view, as it is where no terminal shows it."
    ),
]


def ensure_prefect() -> None:
    """Have Prefect's API at hand before a run is begun."""
    from flows.server import ensure_api

    ensure_api()


def follow(run_url: str, *, plain: bool = False) -> None:
    """Run or resume the run's stages to their end, with the live view where a terminal can show it."""
    from agrpo.instruments.live.showing import can_show

    with saying_where_it_stops(run_url):
        if plain or not can_show():
            _follow_by_lines(run_url)
        else:
            _follow_in_view(run_url)


@contextmanager
def saying_where_it_stops(run_url: str) -> Generator[None]:
    """Say after which step the run was stopped, if it is stopped in the block.

    By Ctrl-C; by SIGTERM, which raises `SystemExit(143)`; or from Prefect, which raises `Stopped`.
    """
    try:
        with _exit_on_sigterm():
            yield
    except (KeyboardInterrupt, SystemExit, Stopped):
        _say_stopped(run_url)
        raise


def say_done(run_url: str) -> None:
    """Where to look next."""
    say(f"done; ask it with: agrpo sql {run_url} \"SELECT step, value FROM live_metrics WHERE name = 'reward'\"")


def _say_stopped(run_url: str) -> None:
    from agrpo.queue.history import done_steps
    from agrpo.queue.run_folder import RunFolder

    steps = done_steps(RunFolder.open(run_url))
    where = f"after step {steps[-1].step}" if steps else "before its first step"
    say(f"stopped as asked {where}; agrpo resume {run_url} goes on")


@contextmanager
def _exit_on_sigterm() -> Generator[None]:
    """Where SIGTERM would end this process without a word, have it raise `SystemExit`, in the main thread."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _follow_by_lines(run_url: str) -> None:
    from agrpo.instruments.live.telling import StallTeller
    from agrpo.queue.run_folder import RunFolder
    from flows.train import follow as follow_flow

    with StallTeller(RunFolder.open(run_url), say, since=time.time()):
        follow_flow(run_url, _say_line)


def _follow_in_view(run_url: str) -> None:
    from agrpo.instruments.live.showing import LiveView
    from agrpo.queue.run_folder import RunFolder
    from flows.train import follow as follow_flow

    with LiveView(RunFolder.open(run_url), since=time.time()) as view:
        follow_flow(run_url, _Warnings())
    if view.error is not None:
        say(f"warning: the live view ended early: {type(view.error).__name__}: {view.error}")


class _Warnings:
    """Says the first warning of each kind; the view counts the others."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, stage: str, line: str) -> None:
        from agrpo.instruments.live.notices import notice_of

        notice = notice_of(stage, line)
        if notice is not None and notice.kind not in self._said:
            self._said.add(notice.kind)
            say(str(notice))


def _say_line(stage: str, line: str) -> None:
    """One plain line per step, and whatever asks for attention."""
    told = read_line(line)
    if told is not None and told.level == "INFO" and told.speaker == "agrpo.stages.learner":
        say(told.message)
    from agrpo.instruments.live.notices import notice_of

    notice = notice_of(stage, line)
    if notice is not None:
        say(str(notice))
