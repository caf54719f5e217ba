"""`agrpo runs`: what runs there are."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption
from agrpo.cli.commands import Panel
from agrpo.cli.printing import ListFormat, print_rows, say

PANEL = Panel.LOOK


def runs(
    runs_dir: DirOption = "./runs",
    form: Annotated[ListFormat, typer.Option("--format", help="For people or for programs.")] = ListFormat.TABLE,
) -> None:
    """List the runs of a folder: state, steps, last reward."""
    from agrpo.runs import summaries

    rows = [
        {
            "name": summary.name,
            "state": summary.state,
            "steps": summary.steps,
            "max_steps": summary.max_steps,
            "reward": summary.reward,
            "created_at": summary.created_at.isoformat(timespec="seconds"),
            "url": summary.url,
        }
        for summary in summaries(runs_dir)
    ]
    if form is ListFormat.JSON:
        print(json.dumps(rows, indent=1))
    elif not rows:
        say(f"no runs in {runs_dir}; `agrpo quickstart` makes one")
    else:
        print_rows(list(rows[0])[:-2], [list(row.values())[:-2] for row in rows])
