"""Calls between `<tool_call>` and `</tool_call>`: Qwen2.5, Qwen3, SmolLM2 and many others.

Between the tags stands one JSON object, a JSON list of them (SmolLM2), or XML with a function and its parameters
(Qwen3-Coder).
"""

from __future__ import annotations

import re
from typing import Any, cast

from agrpo.tools.formats import ReadTurn, RequestedCall, called, marks_beside, read_json, read_said, unreadable

OPENED, CLOSED = "<tool_call>", "</tool_call>"
PARAMETER_END = "</parameter>"

_CALL = re.compile(rf"{OPENED}(.*?)({CLOSED}|(?={OPENED})|\Z)", re.DOTALL)
_MARKS = marks_beside(rf"{OPENED}(?:(?!{OPENED}).)*?{CLOSED}")
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?")


def read(text: str, /, *, thinking: bool = False) -> ReadTurn:
    """The turn's text and calls."""
    return read_said(text, _MARKS, _said, thinking=thinking)


def _said(text: str) -> ReadTurn:
    calls = [call for found in _CALL.finditer(text) for call in _calls(found[1], closed=bool(found[2]))]
    return ReadTurn(content=_CALL.sub("", text), calls=calls)


def _calls(written: str, *, closed: bool) -> list[RequestedCall]:
    if not closed:
        return [unreadable(written, f"it does not end with {CLOSED}")]
    if function := _FUNCTION.fullmatch(written):
        return [RequestedCall(name=function[1], arguments=_parameters(function[2]))]
    try:
        value = read_json(written)
    except ValueError as error:
        return [unreadable(written, f"it is no JSON: {error}")]
    entries = cast("list[Any]", value) if isinstance(value, list) and value else [value]
    return [called(entry, written) for entry in entries]


def _parameters(written: str) -> dict[str, str]:
    """XML has no types: all values are text, which the tool's own types read."""
    parameters: dict[str, str] = {}
    for piece in written.split(PARAMETER_END)[:-1]:
        if begun := _PARAMETER.search(piece):
            parameters[begun[1]] = piece[begun.end() :].removesuffix("\n")
    return parameters
