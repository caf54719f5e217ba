"""`agrpo rebuild`: a run's database made again."""

from __future__ import annotations

from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import print_rows, say
from agrpo.cli.progress import progress

PANEL = Panel.ASK


def rebuild(
    run: RunArgument,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare; ends with 1 where they differ. The old database stays.")
    ] = False,
    runs_dir: DirOption = "./runs",
) -> None:
    """Make a run's database again from its folder, and say whether it is the one that was there.

    The new one is made beside the old one from nothing but the queue, its archive and the step log, compared row for row where
    the old one can be read, and put in its place at once. For a database that is damaged, or that somebody wrote into.

    While a run goes on its recorder writes as well: it takes the new one over, and --check counts what is not recorded yet.

    Example: agrpo rebuild latest

    Example: agrpo rebuild latest --check
    """
    from agrpo.audit import rebuild as make
    from agrpo.runs import find

    folder = find(run, runs_dir)
    with progress() as tell:
        rebuilt = make(folder, check=check, tell=tell)
    odd = [table for table in rebuilt.comparisons if not table.identical]
    if odd:
        names = ["table", "rows", "only in the old one", "only in the new one", "columns that differ"]
        print_rows(names, [[t.table, t.num_rows, t.only_old, t.only_new, ", ".join(t.columns)] for t in odd])
    if rebuilt.unreadable is not None:
        say(f"not compared: {rebuilt.unreadable}")
    elif not odd:
        say(
            f"identical: {sum(table.num_rows for table in rebuilt.comparisons):,} rows of {len(rebuilt.comparisons)} tables"
        )
    else:
        say(f"{len(odd)} of {len(rebuilt.comparisons)} tables differ")
    if not check:
        say(f"{folder.database} is made again from {rebuilt.num_records:,} records")
    elif not rebuilt.identical:
        raise typer.Exit(1)
