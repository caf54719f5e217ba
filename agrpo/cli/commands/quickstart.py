"""`agrpo quickstart`: everything from nothing."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption
from agrpo.cli.commands import Panel
from agrpo.cli.following import PlainOption, follow
from agrpo.cli.printing import TableFormat, print_table, say

PANEL = Panel.TRAIN


def quickstart(
    task: Annotated[
        str,
        typer.Option(
            help="`thinking`: short sums, worked or answered at once; `sorting`: lists longer than the warm start showed."
        ),
    ] = "thinking",
    seed: Annotated[int, typer.Option(min=0, help="Of the model, the warm start and the run.")] = 1,
    runs_dir: DirOption = "./runs",
    plain: PlainOption = False,
) -> None:
    """Train a tiny model from scratch on this machine, in minutes, and look at the run.

    Builds a model of half a million weights and its tokenizer, warms it up on worked examples, and lets GRPO find out
    what pays. Ends with the reward on held-out prompts before and after, a plot, and three questions to the database.
    """
    from agrpo.quickstart.command import Terminal, run_quickstart

    terminal = Terminal(
        say=say, show=lambda table: print_table(table, TableFormat.TABLE), follow=partial(follow, plain=plain)
    )
    run_quickstart(task, seed=seed, runs_dir=runs_dir, terminal=terminal)
