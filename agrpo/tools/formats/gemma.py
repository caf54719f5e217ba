"""Calls of FunctionGemma: `<start_function_call>call:name{key:value}<end_function_call>`, text between `<escape>`."""

from __future__ import annotations

import json
import re

from agrpo.tools.formats import ReadTurn, RequestedCall, called, marks_beside, read_json, read_said, unreadable

OPENED, CLOSED = "<start_function_call>", "<end_function_call>"

_CALL = re.compile(rf"{OPENED}(.*?)({CLOSED}|(?={OPENED})|\Z)", re.DOTALL)
_MARKS = marks_beside(rf"{OPENED}(?:(?!{OPENED}).)*?{CLOSED}")
_NAMED = re.compile(r"\s*call:\s*([\w.-]+)\s*(\{.*\})\s*", re.DOTALL)
_PIECE = re.compile(r"<escape>(.*?)<escape>|([{,]\s*)([A-Za-z_]\w*)\s*:", re.DOTALL)


def read(text: str, /, *, thinking: bool = False) -> ReadTurn:
    """The turn's text and calls."""
    return read_said(text, _MARKS, _said, thinking=thinking)


def _said(text: str) -> ReadTurn:
    calls = [_call(found[1], closed=bool(found[2])) for found in _CALL.finditer(text)]
    return ReadTurn(content=_CALL.sub("", text), calls=calls)


def _call(written: str, *, closed: bool) -> RequestedCall:
    if not closed:
        return unreadable(written, f"it does not end with {CLOSED}")
    found = _NAMED.fullmatch(written)
    if found is None:
        return unreadable(written, "expected call:name{arguments}")
    try:
        return called({"name": found[1], "arguments": read_json(_PIECE.sub(_as_json, found[2]))}, written)
    except ValueError as error:
        return unreadable(written, f"its arguments cannot be read: {error}", found[1])


def _as_json(piece: re.Match[str]) -> str:
    """Text between its marks, or a key without quotes, as JSON has it."""
    if piece[3] is None:
        return json.dumps(piece[1])
    return f"{piece[2]}{json.dumps(piece[3])}:"
