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
    """List the runs of a folder: state, steps, last reward.

    A run that cannot be read is listed as damaged, or as too new for this agrpo, and why is said below.
    """
    from agrpo.runs import summaries

    found = summaries(runs_dir)
    rows = [
        {
            "name": summary.name,
            "state": summary.state,
            "steps": summary.steps,
            "max_steps": summary.max_steps,
            "reward": summary.reward,
            "created_at": summary.created_at.isoformat(timespec="seconds"),
            "url": summary.url,
            "trouble": summary.trouble,
        }
        for summary in found
    ]
    if form is ListFormat.JSON:
        print(json.dumps(rows, indent=1))
    elif not rows:
        say(f"no runs in {runs_dir}; `agrpo quickstart` makes one")
    else:
        print_rows(list(rows[0])[:-3], [list(row.values())[:-3] for row in rows])
    for summary in found if form is ListFormat.TABLE else []:
        if summary.trouble:
            say(f"{summary.name} ({summary.state}): {summary.trouble}")
