"""`agrpo sql`: one question to a run's database."""

from __future__ import annotations

from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import TableFormat, print_table

PANEL = Panel.ASK


def sql(
    run: RunArgument,
    query: Annotated[str, typer.Argument(metavar="SQL", help='Such as "SELECT * FROM group_status LIMIT 5".')],
    form: Annotated[
        TableFormat | None,
        typer.Option(
            "--format", help="Default: a table in a terminal, CSV elsewhere. Parquet goes to standard output."
        ),
    ] = None,
    runs_dir: DirOption = "./runs",
) -> None:
    """Ask a run's database, also while the run goes on.

    Tables and views are listed by: agrpo sql RUN "SELECT table_name, comment FROM duckdb_tables() UNION ALL SELECT
    view_name, comment FROM duckdb_views() WHERE NOT internal"
    """
    from agrpo.database.queries import query as ask
    from agrpo.runs import find

    print_table(ask(find(run, runs_dir).database, query), form)
