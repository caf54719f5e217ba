"""Arguments that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's folder or URL, the beginning of its name, or `latest`.")
]
DirOption = Annotated[str, typer.Option("--dir", help="Folder that holds the runs.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Overrides one setting of the file; may be repeated."),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME[,NAME]",
        help="Papers' settings under those of the file, from left to right; `agrpo recipes` lists them.",
    ),
]
