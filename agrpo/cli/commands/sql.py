"""`agrpo sql`: one question to a run's database."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import TableFormat, print_table, say

PANEL = Panel.ASK

_RELATIONS = "FROM schema_relations ORDER BY kind DESC, relation"


def sql(
    run: RunArgument,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL", help='Such as "SELECT * FROM group_status LIMIT 5"; - reads it from standard input.'
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read the SQL from a file instead."),
    ] = None,
    form: Annotated[
        TableFormat | None,
        typer.Option(
            "--format", help="Default: a table in a terminal, CSV elsewhere. Parquet goes to standard output."
        ),
    ] = None,
    runs_dir: DirOption = "./runs",
) -> None:
    """Ask a run's database, also while the run goes on. Without SQL: what tables and views there are.

    The columns of one: agrpo sql RUN "FROM schema_columns WHERE relation = 'live_samples'". What is often asked is
    written already: agrpo questions.
    """
    from agrpo.database.queries import query as ask
    from agrpo.runs import find

    asked = _asked(query, file)
    print_table(ask(find(run, runs_dir).database, asked or _RELATIONS), form)
    if asked is None and sys.stdout.isatty():
        say("columns: agrpo sql RUN \"FROM schema_columns WHERE relation = 'live_samples'\"; all of them: docs/sql.md")


def _asked(query: str | None, file: Path | None) -> str | None:
    """The SQL, wherever it was given."""
    if file is not None and query is not None:
        raise typer.BadParameter("takes SQL or --file, not both", param_hint="SQL")
    data = file.read_bytes() if file is not None else sys.stdin.buffer.read() if query == "-" else None
    if data is None:
        return query
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"{file or 'standard input'} is no text in UTF-8, which SQL has to be ({error})",
            param_hint="SQL" if file is None else "--file",
        ) from None
