"""`agrpo train`: begin a run, or go on with the one that was begun."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agrpo.cli.arguments import RecipeOption, SetOption
from agrpo.cli.commands import Panel
from agrpo.cli.following import PlainOption, ensure_prefect, follow, say_done
from agrpo.cli.printing import say

PANEL = Panel.TRAIN


def train(
    file: Annotated[
        Path, typer.Argument(metavar="RUN.toml", help="The run's settings; `agrpo settings` explains each.")
    ],
    *,
    sets: SetOption = None,
    recipe: RecipeOption = None,
    folder: Annotated[
        str | None, typer.Option(help="Folder of this run, instead of `{run.dir}/{run.name}-{time}`.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the newest run of this run.name in this run.dir (or in --folder), and begin one only where there "
            "is none: a job that is started again and again gets further each time.",
        ),
    ] = False,
    plain: PlainOption = False,
) -> None:
    """Start a run and follow it to its end: a live view in a terminal, one line per step elsewhere.

    Ctrl-C stops the run; `agrpo resume` goes on with it, and so does this command with --resume. A run that is gone on with
    keeps the settings that decide what comes out of it; others, such as stop.max_steps, may be given anew.

    Example: agrpo train run.toml --set optimizer.learning_rate=1e-5 --set stop.max_steps=100

    Example: agrpo train run.toml --recipe dapo,tis

    Example: agrpo train run.toml --resume --set stop.max_steps=200
    """
    from agrpo.config import resolve
    from agrpo.recipes import beneath
    from agrpo.resuming import newest_run, take_up
    from agrpo.runs import prepare, refuse_problems
    from agrpo.runs.memory import headings, machine_here, plan_memory
    from agrpo.runs.publishing import adapter_sentence, precision_sentence

    settings = resolve(file, sets or [], beneath=beneath(recipe))
    config = refuse_problems(settings, folder=folder)
    for line in headings(plan_memory(config, machine_here())):
        say(line)
    run = newest_run(settings, folder) if resume else None
    if run is None:
        ensure_prefect()
        run = prepare(settings, folder=folder)
        say(f"run {run.url}")
        for sentence in (adapter_sentence(settings), precision_sentence(config)):
            if sentence is not None:
                say(sentence)
    else:
        take_up(run, settings)
        say(f"run {run.url}, gone on with")
    follow(run.url, plain=plain)
    say_done(run.url)
