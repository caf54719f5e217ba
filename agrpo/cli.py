"""The command line: `agrpo quickstart | train | resume | runs | sql | check`."""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from agrpo.errors import AgrpoError, ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer(
    name="agrpo",
    help="Asynchronous GRPO: reinforcement learning of language models on verifiable rewards.\n\n"
    "A run is a folder: its rollouts, its write-ahead log, its weights, and a database to ask in SQL while it goes on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's folder or URL, the beginning of its name, or `latest`.")
]
DirOption = Annotated[str, typer.Option("--dir", help="Folder that holds the runs.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Overrides one setting of the file; may be repeated."),
]


class TableFormat(enum.StrEnum):
    """How rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class ListFormat(enum.StrEnum):
    """How runs are listed."""

    TABLE = "table"
    JSON = "json"


def main() -> None:
    """Run the command line. Errors are one message, not a traceback: exit 2 for settings, 1 for anything else."""
    # As for `python -m agrpo`: rewards of the user's own are modules of the folder they work in.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        app()
    except ConfigError as error:
        _fail("cannot run with these settings:\n" + "\n".join(f"  - {problem}" for problem in error.problems), 2)
    except AgrpoError as error:
        _fail(f"{type(error).__name__}: {error}", 1)
    except KeyboardInterrupt:
        _fail("interrupted; `agrpo resume latest` goes on from the last finished step", 130)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


@app.command()
def quickstart(
    task: Annotated[
        str,
        typer.Option(
            help="`thinking`: short sums, worked or answered at once; `sorting`: lists longer than the warm start showed."
        ),
    ] = "thinking",
    seed: Annotated[int, typer.Option(min=0, help="Of the model, the warm start and the run.")] = 1,
    runs_dir: DirOption = "./runs",
) -> None:
    """Train a tiny model from scratch on this machine, in minutes, and look at the run.

    Builds a model of half a million weights and its tokenizer, warms it up on worked examples, and lets GRPO find out
    what pays. Ends with the reward on held-out prompts before and after, a plot, and three questions to the database.
    """
    from agrpo.quickstart.command import Terminal, run_quickstart

    terminal = Terminal(say=_say, show=lambda table: _print_table(table, TableFormat.TABLE), follow=_follow)
    run_quickstart(task, seed=seed, runs_dir=runs_dir, terminal=terminal)


@app.command()
def train(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run's settings; `agrpo check` explains them.")],
    sets: SetOption = None,
    folder: Annotated[
        str | None, typer.Option(help="Folder of this run, instead of `{run.dir}/{run.name}-{time}`.")
    ] = None,
) -> None:
    """Start a run and follow it to its end.

    Example: agrpo train run.toml --set optimizer.learning_rate=1e-5 --set stop.max_steps=100
    """
    from agrpo.config import resolve
    from agrpo.runs import prepare, refuse_problems

    settings = resolve(file, sets or [])
    refuse_problems(settings, folder=folder)
    _ensure_prefect()
    run = prepare(settings, folder=folder)
    _say(f"run {run.url}")
    _follow(run.url)
    _say_done(run.url)


@app.command()
def resume(run: RunArgument, runs_dir: DirOption = "./runs") -> None:
    """Go on with a run that was stopped or killed.

    The learner loads the newest checkpoint and replays the steps recorded after it, to the very weights it had
    published; groups that were generated and not trained are trained now. Nothing is lost and nothing trained twice.
    """
    from agrpo.runs import find

    found = find(run, runs_dir)
    _say(f"run {found.url}")
    _follow(found.url)
    _say_done(found.url)


@app.command()
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
        _say(f"no runs in {runs_dir}; `agrpo quickstart` makes one")
    else:
        _print_rows(list(rows[0])[:-2], [list(row.values())[:-2] for row in rows])


@app.command()
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

    table = ask(find(run, runs_dir).database, query)
    _print_table(table, form or (TableFormat.TABLE if sys.stdout.isatty() else TableFormat.CSV))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run's settings.")],
    sets: SetOption = None,
) -> None:
    """Say everything that is wrong with a run's settings, model, prompts, rewards and place, and start nothing.

    Prints the resolved settings with the origin of each when all is well.
    """
    from agrpo.config import RunConfig, resolve
    from agrpo.runs import check as find_problems

    config = RunConfig.build(resolve(file, sets or []))
    problems = find_problems(config)
    if problems:
        raise ConfigError(problems)
    for table, values in config.settings.tree.items():
        for key, value in values.items() if isinstance(values, dict) else [(None, value) for value in values]:
            where = table if key is None else f"{table}.{key}"
            origin = config.settings.origins.get(where, config.settings.origins.get(table, "default"))
            print(f"{where} = {json.dumps(value)}  # {origin}")
    _say(f"{file}: nothing is wrong")


def _ensure_prefect() -> None:
    """Have Prefect's API at hand before a run is begun."""
    from flows.server import ensure_api

    ensure_api()


def _follow(run_url: str) -> None:
    from flows.train import follow

    follow(run_url, _show_line)


def _say_done(run_url: str) -> None:
    _say(f"done; ask it with: agrpo sql {run_url} \"SELECT step, value FROM live_metrics WHERE name = 'reward'\"")


def _show_line(stage: str, line: str) -> None:
    """One plain line per step, and whatever asks for attention."""
    level, _, rest = line[9:].partition(" ")
    speaker, _, message = rest.partition(" ")
    if level == "INFO" and speaker == "agrpo.stages.learner":
        _say(message)
    elif level in ("WARNING", "ERROR", "CRITICAL"):
        _say(f"{level.lower()}: {stage}: {message}")


def _say(line: str) -> None:
    print(line, flush=True)


def _print_table(table: pa.Table, form: TableFormat) -> None:
    if form is TableFormat.JSON:
        print(json.dumps(table.to_pylist(), default=str, ensure_ascii=False))
    elif form is TableFormat.CSV:
        _print_csv(table)
    elif form is TableFormat.PARQUET:
        from pyarrow import parquet

        parquet.write_table(table, sys.stdout.buffer)
    else:
        _print_rows(table.column_names, [list(row.values()) for row in table.to_pylist()])


def _print_csv(table: pa.Table) -> None:
    import csv

    writer = csv.writer(sys.stdout)
    writer.writerow(table.column_names)
    writer.writerows([_cell(value) for value in row.values()] for row in table.to_pylist())


def _print_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(*names)
    for row in rows:
        shown.add_row(*(_cell(value) for value in row))
    Console().print(shown)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
