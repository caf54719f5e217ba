"""How models write tool calls: a reader of text for each family, chosen by what the model's chat template shows.

A reader never raises: a call that it cannot read is a call with a `problem`, which the model is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

OPENED, CLOSED = "<think>", "</think>"
LONGEST_EXCERPT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCall:
    """A call as the model wrote it."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    problem: str | None = None
    """Why it cannot be read; then there are no arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTurn:
    """An assistant turn, read."""

    content: str
    """What is no call."""
    calls: list[RequestedCall]
    """In the order written."""
    reasoning: str = ""
    """What the model thought, where its tokenizer tells it apart; else it is part of the content."""


CallFormat = Callable[[str], ReadTurn]


def after_thinking(text: str) -> tuple[str, str]:
    """What the model thought, markers included, and what it said. Calls that are only thought of are not made."""
    if CLOSED in text:
        thought, marker, said = text.rpartition(CLOSED)
        return thought + marker, said
    said, marker, thought = text.partition(OPENED)
    return (marker + thought, said) if marker else ("", text)


def called(value: Any, written: str) -> RequestedCall:
    """A call from the JSON object that names it. `written`: as the model wrote it, for what it is told."""
    if not isinstance(value, dict):
        return unreadable(written, "expected a JSON object with a name and arguments")
    document = cast("dict[str, Any]", value)
    name = document.get("name")
    if not isinstance(name, str) or not name:
        return unreadable(written, 'expected "name" to be the name of a tool')
    arguments = document.get("arguments", document.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except ValueError as error:
            return unreadable(written, f"the arguments are no JSON: {error}", name)
    if not isinstance(arguments, dict):
        return unreadable(written, "expected the arguments to be a JSON object", name)
    return RequestedCall(name=name, arguments=cast("dict[str, Any]", arguments))


def unreadable(written: str, why: str, name: str = "") -> RequestedCall:
    """A call that cannot be read."""
    shown = written.strip()
    cut = shown if len(shown) <= LONGEST_EXCERPT else f"{shown[:LONGEST_EXCERPT]}…"
    return RequestedCall(name=name, problem=f"this tool call cannot be read, {why}: {cut}")


def read_json(text: str) -> Any:
    """JSON, without what JSON does not have and records cannot hold. Raises `ValueError`."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half a surrogate pair") from None
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large a number")
    return value


__all__ = ["CallFormat", "ReadTurn", "RequestedCall", "after_thinking", "called", "read_json", "unreadable"]
