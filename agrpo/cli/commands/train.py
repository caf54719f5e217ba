"""`agrpo train`: begin a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agrpo.cli.arguments import SetOption
from agrpo.cli.commands import Panel
from agrpo.cli.following import PlainOption, ensure_prefect, follow, say_done
from agrpo.cli.printing import say

PANEL = Panel.TRAIN


def train(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run's settings; `agrpo check` explains them.")],
    sets: SetOption = None,
    folder: Annotated[
        str | None, typer.Option(help="Folder of this run, instead of `{run.dir}/{run.name}-{time}`.")
    ] = None,
    plain: PlainOption = False,
) -> None:
    """Start a run and follow it to its end: a live view in a terminal, one line per step elsewhere.

    Ctrl-C stops the run; `agrpo resume` goes on with it.

    Example: agrpo train run.toml --set optimizer.learning_rate=1e-5 --set stop.max_steps=100
    """
    from agrpo.config import resolve
    from agrpo.runs import prepare, refuse_problems

    settings = resolve(file, sets or [])
    refuse_problems(settings, folder=folder)
    ensure_prefect()
    run = prepare(settings, folder=folder)
    say(f"run {run.url}")
    follow(run.url, plain=plain)
    say_done(run.url)
