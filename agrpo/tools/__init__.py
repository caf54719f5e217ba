"""Tools: functions of yours that the policy calls in the middle of a rollout.

`functions` finds them and shows them to the model, `formats` reads the model's calls, `calling` runs one. What goes wrong
with a call is the model's to read and the rollout's to record; nothing of it ends a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agrpo.errors import AgrpoError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from agrpo.config import ToolsSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the policy may call."""

    name: str
    """By which the model calls it: the function's own."""
    function: Callable[..., Any]
    is_async: bool
    schema: dict[str, Any]
    """As chat templates take it: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    parameters: Mapping[str, TypeAdapter[Any]]
    """What each argument is checked with."""
    required: frozenset[str]
    """Those without a default."""


def load_tools(section: ToolsSection) -> dict[str, Tool]:
    """The tools of a run by name, in the order of the file. Raises `ToolError`."""
    from agrpo.tools.functions import tool_at

    return {tool.name: tool for tool in map(tool_at, section.functions)}


def check_tools(section: ToolsSection) -> list[str]:
    """What keeps tools from being called here, a sentence each. It imports their modules."""
    from agrpo.tools.functions import tool_at

    problems: list[str] = []
    names: list[str] = []
    for path in section.functions:
        try:
            names.append(tool_at(path).name)
        except (AgrpoError, ImportError) as error:
            problems.append(f"tools.functions: {error}")
    return problems + [
        f'tools.functions: two functions have the name "{name}", by which the model calls them; rename one'
        for name in sorted({name for name in names if names.count(name) > 1})
    ]


def schemas_of(tools: Mapping[str, Tool]) -> Sequence[dict[str, Any]]:
    """As a chat template takes them."""
    return [tool.schema for tool in tools.values()]


__all__ = ["Tool", "check_tools", "load_tools", "schemas_of"]
