"""`agrpo report`: what became of a run, or of several side by side, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption
from agrpo.cli.commands import Panel
from agrpo.cli.printing import say

PANEL = Panel.LOOK


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Folders or URLs, beginnings of names, or `latest`. Several are compared."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page. Default: report.html in the run's folder; report-compare.html here for several runs.",
        ),
    ] = None,
    runs_dir: DirOption = "./runs",
) -> None:
    """Write a run's report: one HTML page that opens anywhere and fetches nothing.

    Curves of reward, lengths, entropy, staleness and time; why groups were dropped;
    what the diagnosis says; the best, worst and most improved prompts to read.
    Of a run that still goes on, it shows what is recorded so far.

    Several runs are drawn over one another, with the settings that differ:

    agrpo report latest

    agrpo report small-lr large-lr --out lr.html
    """
    from agrpo.instruments.report import write_report
    from agrpo.runs import find

    folders = [find(run, runs_dir) for run in runs]
    file = out or (folders[0].local / "report.html" if len(folders) == 1 else Path("report-compare.html"))
    size = write_report(folders, file)
    say(f"{file.absolute()} ({size / 1e6:.1f} MB)")
