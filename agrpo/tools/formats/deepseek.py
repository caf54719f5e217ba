"""Calls of DeepSeek-V3: a name and JSON between markers of its own; V3.1 leaves out the type and the fence."""

from __future__ import annotations

import re

from agrpo.tools.formats import ReadTurn, RequestedCall, called, marks_beside, read_json, read_said, unreadable

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, BETWEEN = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"

_CALL = re.compile(rf"{CALL_BEGIN}(.*?)({CALL_END}|(?={CALL_BEGIN})|\Z)", re.DOTALL)
_MARKS = marks_beside(rf"{CALL_BEGIN}(?:(?!{CALL_BEGIN}).)*?{CALL_END}")
_FENCED = re.compile(r"function" + BETWEEN + r"([^\n]*)\n```(?:json)?(.*?)```\s*", re.DOTALL)
_PLAIN = re.compile(r"(.*?)" + BETWEEN + r"(.*)", re.DOTALL)


def read(text: str, /, *, thinking: bool = False) -> ReadTurn:
    """The turn's text and calls."""
    return read_said(text, _MARKS, _said, thinking=thinking)


def _said(text: str) -> ReadTurn:
    content, marker, written = text.partition(BEGIN)
    calls = [_call(found[1], closed=bool(found[2])) for found in _CALL.finditer(written)]
    if marker and not calls:
        calls = [unreadable(written, f"it does not begin with {CALL_BEGIN}")]
    return ReadTurn(content=content, calls=calls)


def _call(written: str, *, closed: bool) -> RequestedCall:
    if not closed:
        return unreadable(written, f"it does not end with {CALL_END}")
    found = _FENCED.fullmatch(written) or _PLAIN.fullmatch(written)
    if found is None:
        return unreadable(written, f"it has no {BETWEEN} after the name")
    try:
        return called({"name": found[1].strip(), "arguments": read_json(found[2])}, written)
    except ValueError as error:
        return unreadable(written, f"its arguments are no JSON: {error}", found[1].strip())
