"""Following a run from a terminal while its stages work."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from agrpo.cli.printing import say
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

    try:
        if plain or not can_show():
            _follow_by_lines(run_url)
        else:
            _follow_in_view(run_url)
    except KeyboardInterrupt:
        say(f"interrupted; agrpo resume {run_url} goes on from the last finished step")
        raise


def say_done(run_url: str) -> None:
    """Where to look next."""
    say(f"done; ask it with: agrpo sql {run_url} \"SELECT step, value FROM live_metrics WHERE name = 'reward'\"")


def _follow_by_lines(run_url: str) -> None:
    from flows.train import follow as follow_flow

    follow_flow(run_url, _say_line)


def _follow_in_view(run_url: str) -> None:
    from agrpo.instruments.live.showing import LiveView
    from agrpo.queue.run_folder import RunFolder
    from flows.train import follow as follow_flow

    with LiveView(RunFolder.open(run_url), since=time.time()) as view:
        follow_flow(run_url, _say_warning)
    if view.error is not None:
        say(f"warning: the live view ended early: {type(view.error).__name__}: {view.error}")


def _say_line(stage: str, line: str) -> None:
    """One plain line per step, and whatever asks for attention."""
    told = read_line(line)
    if told is not None and told.level == "INFO" and told.speaker == "agrpo.stages.learner":
        say(told.message)
    _say_warning(stage, line)


def _say_warning(stage: str, line: str) -> None:
    from agrpo.instruments.live.notices import notice_of

    notice = notice_of(stage, line)
    if notice is not None:
        say(str(notice))
