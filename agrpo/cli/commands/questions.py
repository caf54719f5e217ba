"""`agrpo questions`: the questions that docs/sql.md answers, asked to a run."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from agrpo.cli.arguments import DirOption
from agrpo.cli.commands import Panel
from agrpo.cli.printing import TableFormat, print_rows, print_table, say
from agrpo.errors import ConfigError
from agrpo.visible import harmless

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table

    from agrpo.database.questions import Question, Value

PANEL = Panel.ASK


def questions(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run's folder or URL, the beginning of its name, or `latest`.")
    ] = None,
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="Name or number. Without: the list of them.")
    ] = None,
    *,
    show_sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL instead of asking; RUN may be left out.")
    ] = False,
    rows: Annotated[int | None, typer.Option(help="Rows to show, of the questions that have many.")] = None,
    last: Annotated[int | None, typer.Option(help="Steps to look at, counted from the newest.")] = None,
    step: Annotated[int | None, typer.Option(help="One optimizer step.")] = None,
    size: Annotated[int | None, typer.Option(help="Steps of a window.")] = None,
    ticket: Annotated[int | None, typer.Option(help="One group, by its number.")] = None,
    rollout: Annotated[int | None, typer.Option(help="Place of a rollout in its group, from 0.")] = None,
    first: Annotated[int | None, typer.Option(help="The older policy version.")] = None,
    second: Annotated[int | None, typer.Option(help="The newer policy version.")] = None,
    asked: Annotated[int | None, typer.Option(help="Leave out prompts that were asked less often.")] = None,
    low: Annotated[float | None, typer.Option(help="Lower bound of the importance ratio.")] = None,
    high: Annotated[float | None, typer.Option(help="Upper bound of the importance ratio.")] = None,
    metric: Annotated[str | None, typer.Option(help="Names of metrics, with % for any letters.")] = None,
    form: Annotated[
        TableFormat | None,
        typer.Option(
            "--format", help="Default: a table in a terminal, CSV elsewhere. Parquet goes to standard output."
        ),
    ] = None,
    runs_dir: DirOption = "./runs",
) -> None:
    """Ask a run what is often asked, such as the hardest prompts or one sample's way back to its request.

    `agrpo questions` lists them; `agrpo questions latest hardest_prompts --rows 5` asks one; with --sql it prints the
    query, to be changed and asked with `agrpo sql latest --file`. A question refuses an option it does not take.
    """
    from agrpo.database.questions import find_question

    given: dict[str, Value] = {
        **{"rows": rows, "last": last, "step": step, "size": size, "ticket": ticket, "rollout": rollout},
        **{"first": first, "second": second, "asked": asked, "low": low, "high": high, "metric": metric},
    }
    given = {name: value for name, value in given.items() if value is not None}
    if show_sql and question is None:
        run, question = None, run
    if question is None:
        _refuse_without_question(run, given)
        _list(run)
        return
    chosen = find_question(question)
    query = chosen.sql(given)
    if show_sql:
        print(query)
    else:
        _ask(chosen, query, run, form, runs_dir)


def _refuse_without_question(run: str | None, given: dict[str, Value]) -> None:
    """What only a question could use, or a question without a run."""
    from agrpo.database.questions import all_questions

    if given:
        raise ConfigError(f"--{next(iter(given))} belongs to a question; name one: agrpo questions RUN QUESTION")
    if run is not None and run.replace("-", "_") in {question.name for question in all_questions()}:
        raise ConfigError(f"{run} is a question, and the run is missing: agrpo questions latest {run}")


def _ask(chosen: Question, query: str, run: str | None, form: TableFormat | None, runs_dir: str) -> None:
    import sys

    from agrpo.database.queries import query as ask
    from agrpo.runs import find

    table = ask(find(run or "latest", runs_dir).database, query)
    if form is TableFormat.TABLE or (form is None and sys.stdout.isatty()):
        _show(chosen, table)
    else:
        print_table(table, form)


def _show(chosen: Question, table: pa.Table) -> None:
    """The question, its answer, and how to read it, in the width of the terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(chosen.title, "bold"))
    if len(table):
        console.print(_drawn(table))
    else:
        console.print("(no row of this run answers it)", style="dim")
    console.print(Text(chosen.reading))


def _drawn(table: pa.Table) -> Table:
    """The rows without lines between columns. No number is ever cut; words are folded where the terminal is narrow."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    columns = [[_cell(value) for value in column.to_pylist()] for column in table.columns]
    for name, cells in zip(table.column_names, columns, strict=True):
        numeric = str(table.schema.field(name).type) in ("double", "float", "int64", "int32")
        longest = max(map(len, [*name.split("_"), *(cells if numeric else [])]))
        drawn.add_column(
            name.replace("_", " "), justify="right" if numeric else "left", overflow="fold", min_width=longest
        )
    for row in zip(*columns, strict=True):
        drawn.add_row(*(Text(harmless(cell)) for cell in row))
    return drawn


def _cell(value: object) -> str:
    """A value with four digits, which are enough to read; the other formats have all of them."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime.datetime) else str(value)


def _list(run: str | None) -> None:
    """The list, and how to go on."""
    from agrpo.database.questions import all_questions

    questions = all_questions()
    takes = [" ".join(f"--{own.name}" for own in one.parameters) for one in questions]
    print_rows(
        ["", "name", "question", "options"],
        [[one.number, one.name, one.title, options] for one, options in zip(questions, takes, strict=True)],
    )
    say(f"ask one with: agrpo questions {run or 'latest'} {questions[0].name}; docs/sql.md explains the answers")
