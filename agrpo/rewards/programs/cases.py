"""Test cases of a row, in the forms that data sets keep them in, and the program in an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agrpo.errors import RewardError

FORMS = (
    'a list of {"input": …, "output": …} and of tests in Python, {"inputs": […], "outputs": […]}, or the JSON of either'
)
_BLOCK = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*\n(.*?)^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_PYTHON = ("python", "python3", "py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing asked of a program."""

    input: str = ""
    """What it reads from its standard input."""
    output: str | None = None
    """What it has to print. None: `test` decides."""
    test: str | None = None
    """Python that runs behind the program, in its names, and raises where that is wrong."""


def code_of(answer: str) -> str | None:
    """The last fenced block that is marked as Python or, where none is, the last without a mark; None without one."""
    blocks = [(mark.lower(), body) for _, mark, body in _BLOCK.findall(answer)]
    marked = [body for mark, body in blocks if mark in _PYTHON]
    plain = [body for mark, body in blocks if not mark]
    found = marked or plain
    return found[-1] if found else None


def cases_of(fact: Any, name: str) -> list[Case]:
    """The row's test cases. `name`: of the fact. Raises `RewardError` for what is none."""
    if isinstance(fact, str) and fact.lstrip()[:1] in ("[", "{"):
        try:
            fact = json.loads(fact)
        except ValueError:
            pass  # Python may begin like that too
    if isinstance(fact, Mapping):
        fact = _paired(cast("Mapping[str, Any]", fact), name)
    entries: Any = [fact] if isinstance(fact, str) else fact
    if isinstance(entries, bytes) or not isinstance(entries, Sequence) or not entries:
        raise RewardError(f'the fact "{name}" holds no test cases but {fact!r:.100}; expected {FORMS}')
    return [_case(entry, f"{name}[{place}]") for place, entry in enumerate(entries)]


def same_output(printed: str, expected: str) -> bool:
    """Line by line, but for white space at the end of each and empty lines at the end of all."""
    return _lines(printed) == _lines(expected)


def _paired(fact: Mapping[str, Any], name: str) -> list[Any]:
    if fact.get("fn_name"):
        raise RewardError(
            f'the fact "{name}" tests calls of a function (fn_name); write each as Python: assert f(1) == 2'
        )
    inputs, outputs = fact.get("inputs"), fact.get("outputs")
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence) or len(inputs) != len(outputs):
        raise RewardError(
            f'the fact "{name}" has the keys {", ".join(fact) or "none"}; expected {FORMS}, each list as long'
        )
    return [{"input": given, "output": expected} for given, expected in zip(inputs, outputs, strict=True)]


def _case(entry: Any, where: str) -> Case:
    if isinstance(entry, str):
        return Case(test=entry)
    if isinstance(entry, Mapping) and "output" in entry:
        return Case(input=_text(entry.get("input"), where), output=_text(entry["output"], where))
    raise RewardError(f"{where} is {entry!r:.100}; expected {FORMS}")


def _text(value: Any, where: str) -> str:
    """Text, or lines of it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise RewardError(f"{where} has {value!r:.100} as text; expected a string, or a list of lines")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
