"""Tags by which people find a run's flow runs: the project, the run's name, its model and its prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PROJECT = "agrpo"


def tags_of(document: Mapping[str, Any], present: Iterable[str] = ()) -> list[str]:
    """The `present` tags of a flow run, then those of the run in `document` (run.json), each once."""
    tree = document["settings"]["tree"]
    prompts = tree.get("prompts", {})
    source = prompts.get("dataset") or prompts.get("path")
    found = [
        PROJECT,
        tree.get("run", {}).get("name"),
        _place(tree.get("model", {}).get("path")),
        _place(source),
    ]
    return list(dict.fromkeys([*present, *(tag for tag in found if tag)]))


def _place(path: str | None) -> str | None:
    """A path's last two parts: the folder too, since most models lie in one called `model`. A hub id is whole."""
    return "/".join(path.rstrip("/").split("/")[-2:]) if path else None
