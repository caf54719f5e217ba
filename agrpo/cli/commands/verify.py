"""`agrpo verify`: whether a run's books balance."""

from __future__ import annotations

from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import print_rows, say
from agrpo.cli.progress import progress

PANEL = Panel.LOOK

MOST_FINDINGS = 100
"""Printed; a file that is gone can make many."""


def verify(
    run: RunArgument,
    database: Annotated[
        bool, typer.Option("--database/--no-database", help="Also read the whole database and compare it, row by row.")
    ] = True,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also join every group's tokens to training sequences once more. Slower.")
    ] = False,
    runs_dir: DirOption = "./runs",
) -> None:
    """Check a run's books: every ticket, step, weight file and row is accounted for, and every byte readable.

    Every ticket is trained, dropped for a reason, void, pending or in flight, and never consumed twice. Plans and done records
    pair and their digests chain, down to the weights on the disk. The database holds what the folder holds.

    Writes nothing, and may be asked while the run goes on: what moves between two looks is no finding. Ends with 0 where
    everything balances; with 1 and a line for each finding where it does not.

    Example: agrpo verify latest
    """
    from agrpo.audit import verify as look
    from agrpo.runs import find

    folder = find(run, runs_dir)
    with progress() as tell:
        balance = look(folder, database=database, deep=deep, tell=tell)
    print_rows(["", "number", "told"], [[line.what, f"{line.number:,}", line.told] for line in balance.lines])
    for finding in balance.findings[:MOST_FINDINGS]:
        say(f"{finding}")
    if len(balance.findings) > MOST_FINDINGS:
        say(f"… and {len(balance.findings) - MOST_FINDINGS:,} more")
    if not balance.balances:
        say(f"does not balance: {len(balance.findings):,} findings in {folder.url}")
        raise typer.Exit(1)
    say(f"balances: {folder.url}")
