"""The command line: every page of `commands/` is one command, called as its page is."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import agrpo
from agrpo.cli import commands
from agrpo.errors import AgrpoError, ConfigError
from agrpo.visible import harmless

app = typer.Typer(
    name="agrpo",
    help="Asynchronous GRPO: reinforcement learning of language models on verifiable rewards.\n\n"
    "A run is a folder: its rollouts, its write-ahead log, its weights, and a database to ask in SQL while it goes on.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"agrpo {agrpo.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `agrpo` itself."""


def main() -> None:
    """Run the command line. Errors are one message, not a traceback: exit 2 for settings, 1 for anything else."""
    _hold_flows()
    # As for `python -m agrpo`: rewards of the user's own are modules of the folder they work in.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        app()
    except ConfigError as error:
        _fail("cannot run with these settings:\n" + "\n".join(f"  - {problem}" for problem in error.problems), 2)
    except AgrpoError as error:
        _fail(str(error) or type(error).__name__, 1)
    except BrokenPipeError:
        # Whoever read the output has enough of it, as `head` has. Python would complain once more at its own end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _hold_flows() -> None:
    """Import the package `flows` that stands beside agrpo, before the user's folder is searched.

    A `flows.py` there, usual in a project of Prefect, would be taken for it. No other process of a run imports `flows`.
    """
    beside = str(Path(agrpo.__file__).parent.parent)
    sys.path.insert(0, beside)
    try:
        importlib.import_module("flows")
    finally:
        sys.path.remove(beside)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {harmless(message)}", file=sys.stderr, flush=True)
    sys.exit(code)


def _register() -> None:
    """Offer the commands by panel, in the panels' order."""
    pages = [
        importlib.import_module(f"{commands.__name__}.{page.name}") for page in pkgutil.iter_modules(commands.__path__)
    ]
    panels = list(commands.Panel)
    for page in sorted(pages, key=lambda page: panels.index(page.PANEL)):
        name = page.__name__.rpartition(".")[2]
        app.command(name, rich_help_panel=page.PANEL.value)(getattr(page, name))


_register()
