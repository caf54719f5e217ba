"""How models write tool calls: a reader of text for each family, chosen by what the model's chat template shows.

A reader never raises: a call that it cannot read is a call with a `problem`, which the model is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, cast

OPENED, CLOSED = "<think>", "</think>"
"""Of a thought."""
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


class CallFormat(Protocol):
    """How a family's turns are read. `thinking`: the prompt opened a thought, in which the turn begins."""

    def __call__(self, text: str, /, *, thinking: bool = False) -> ReadTurn: ...


def marks_beside(call: str, *, opened: str = OPENED, closed: str = CLOSED) -> re.Pattern[str]:
    """Finds where thoughts open and close. `call`: expression for a whole call; marks in its arguments are none."""
    return re.compile(f"{call}|{re.escape(opened)}|{re.escape(closed)}", re.DOTALL)


def read_said(
    text: str,
    marks: re.Pattern[str],
    read: Callable[[str], ReadTurn],
    *,
    thinking: bool,
    thought: tuple[str, str] = (OPENED, CLOSED),
) -> ReadTurn:
    """A turn whose calls are those of what it said: calls that it only thought of are not made.

    `read`: of a piece that was said. `thought`: what opens and closes one. Raises nothing.
    """
    turns = [
        ReadTurn(content=piece, calls=[]) if is_thought else read(piece)
        for piece, is_thought in _pieces(text, marks, thought, thinking=thinking)
    ]
    calls = [call for turn in turns for call in turn.calls]
    return ReadTurn(content="".join(turn.content for turn in turns).strip() if calls else text, calls=calls)


def _pieces(
    text: str, marks: re.Pattern[str], thought: tuple[str, str], *, thinking: bool
) -> Iterator[tuple[str, bool]]:
    """What was thought, marks included, and what was said, in turns: the text, and whether it is a thought.

    A thought that closes and has never opened began with the turn.
    """
    opened, closed = thought
    begin, might_think = 0, True
    for found in marks.finditer(text):
        if found[0] == opened and not thinking:
            yield text[begin : found.start()], False
            begin, thinking = found.start(), True
        elif found[0] == closed and (thinking or might_think):
            yield text[begin : found.end()], True
            begin, thinking = found.end(), False
        else:
            continue
        might_think = False
    yield text[begin:], thinking


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


__all__ = [
    "CallFormat",
    "ReadTurn",
    "RequestedCall",
    "called",
    "marks_beside",
    "read_json",
    "read_said",
    "unreadable",
]
