"""`agrpo export`: a run as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import say

PANEL = Panel.ASK


def export(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder, or an empty one.")],
    what: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Of rollouts, groups, prompts, turns, tokens, samples, rewards, steps, metrics, versions, events and "
            "settings, with commas between; `all` has turns and tokens too, which are most of the bytes.",
        ),
    ] = "rollouts,groups,prompts,samples,rewards,steps,metrics,versions,events,settings",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export. Nothing else is ever replaced.")
    ] = False,
    runs_dir: DirOption = "./runs",
) -> None:
    """Write a run as Parquet, for DuckDB, Polars and Hugging Face datasets, with a card that explains every column.

    agrpo export latest ./exported --what rollouts,tokens,metrics. It works while the run goes on, in bounded memory; the
    folder appears whole or not at all.
    """
    from agrpo.database.export import EXPORTS
    from agrpo.database.export import export as write
    from agrpo.runs import find

    names = list(EXPORTS) if what == "all" else [name.strip() for name in what.split(",") if name.strip()]
    files = write(find(run, runs_dir).database, folder, names, overwrite=overwrite, told=lambda name: say(f"{name} …"))
    for file in files:
        say(f"{file.path}  {file.num_rows:,} rows, {file.path.stat().st_size / 1e6:,.1f} MB")
    say(f"{folder / 'README.md'} explains them")
