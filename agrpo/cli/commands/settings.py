"""`agrpo settings`: what may be set in a run's file, as docs/settings.md has it."""

from __future__ import annotations

from typing import Annotated

import typer

from agrpo.cli.commands import Panel

PANEL = Panel.TRAIN


def settings(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table, such as `engine`.")] = None,
) -> None:
    """Explain every setting of a run's file: what it takes, its default, and what it means.

    Example: agrpo settings engine
    """
    from agrpo.config.document import document, table_document

    print(document() if table is None else table_document(table), end="")
