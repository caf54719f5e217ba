"""Calls of Llama 3: the whole turn is JSON with a name and parameters, several of them with `;` between."""

from __future__ import annotations

import json
import re
from typing import Any

from agrpo.tools.formats import CLOSED, ReadTurn, RequestedCall, called, marks_beside, read_json, read_said, unreadable

PYTHON_TAG = "<|python_tag|>"

_BEGIN = r'\{\s*"(?:name|type|parameters|function)"\s*:'
_BEGINS = re.compile(_BEGIN)
_MARKS = marks_beside(rf"(?:(?:\A|(?<={CLOSED}))\s*{_BEGIN}|{re.escape(PYTHON_TAG)}).*")
_BETWEEN = re.compile(r"\s*;?\s*")


def read(text: str, /, *, thinking: bool = False) -> ReadTurn:
    """The turn's text and calls."""
    return read_said(text, _MARKS, _said, thinking=thinking)


def _said(text: str) -> ReadTurn:
    said, tag, tagged = text.partition(PYTHON_TAG)
    written = tagged.strip() if tag else text.strip()
    if _BEGINS.match(written):
        return ReadTurn(content=said if tag else "", calls=list(_calls(written)))
    problem = unreadable(written, "expected a JSON object with a name and parameters") if tag else None
    return ReadTurn(content=said if tag else text, calls=[problem] if problem else [])


def _calls(written: str) -> list[RequestedCall]:
    calls: list[RequestedCall] = []
    place = 0
    while place < len(written):
        try:
            _, end = json.JSONDecoder().raw_decode(written, place)
            value: Any = read_json(written[place:end])
        except (ValueError, RecursionError) as error:
            return [*calls, unreadable(written[place:], f"it is no JSON: {error}")]
        function = value.get("function") if isinstance(value, dict) else None
        calls.append(called(_named(value, function), written[place:end]))
        between = _BETWEEN.match(written, end)
        place = between.end() if between else end
    return calls


def _named(value: Any, function: Any) -> Any:
    """`{"type": "function", "name": …}`, or `{"function": "name", …}`, or `{"function": {"name": …}}`."""
    if isinstance(function, dict):
        return function
    return {"name": function, **value} if isinstance(function, str) else value
