"""Calls of Mistral: a JSON list after `[TOOL_CALLS]`, or, newer, `[TOOL_CALLS]name[ARGS]{…}` for each; thoughts in `[THINK]`."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, cast

from agrpo.tools.formats import ReadTurn, RequestedCall, called, marks_beside, read_json, read_said, unreadable

BEGIN = "[TOOL_CALLS]"
THOUGHT = ("[THINK]", "[/THINK]")

_MARKS = marks_beside(
    r'\[TOOL_CALLS\](?:"(?:[^"\\]|\\.)*"|(?!\[/?THINK\]|\[TOOL_CALLS\])[^"])*', opened=THOUGHT[0], closed=THOUGHT[1]
)
_HEAD = re.compile(r"\s*(?:(?P<name>[^\s\[\]{}\"]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*)?")


class _Read(NamedTuple):
    calls: list[RequestedCall]
    end: int
    """Where the text goes on."""


def read(text: str, /, *, thinking: bool = False) -> ReadTurn:
    """The turn's text and calls."""
    return read_said(text, _MARKS, _said, thinking=thinking, thought=THOUGHT)


def _said(text: str) -> ReadTurn:
    content, calls, place = "", list[RequestedCall](), 0
    while (begin := text.find(BEGIN, place)) >= 0:
        found = _calls(text, begin + len(BEGIN))
        content, calls, place = content + text[place:begin], calls + found.calls, found.end
    return ReadTurn(content=content + text[place:], calls=calls)


def _calls(text: str, begin: int) -> _Read:
    head = _HEAD.match(text, begin)
    assert head is not None, "every text begins with a name or with nothing"
    name, start = head["name"], head.end()
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
        value = read_json(text[start:end])
    except (ValueError, RecursionError) as error:
        following = text.find(BEGIN, begin)
        written = text[begin : following if following >= 0 else len(text)]
        what = "its arguments are" if name else "it is"
        return _Read([unreadable(written, f"{what} no JSON: {error}", name or "")], begin + len(written))
    if name:
        return _Read([called({"name": name, "arguments": value}, text[begin:end])], end)
    entries = cast("list[Any]", value) if isinstance(value, list) and value else [value]
    return _Read([called(entry, text[begin:end]) for entry in entries], end)
