"""Questions that a run's database answers: one `.sql` file each, numbered, and the comment at its head explains it.

The comment has the question, then how to read the answer, then its parameters and its columns:

    -- Which prompts are the hardest?
    --
    -- Lowest mean reward first.
    --
    -- $rows INTEGER = 20: prompts to show
    --
    -- prompt_id: the same question has the same id in every epoch
    SELECT ...

A parameter is a literal in the SQL that is asked, so that what `agrpo questions --sql` prints can be changed and asked.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agrpo.errors import DatabaseError

Value = int | float | str | None

_PARAMETER = re.compile(r"\$(\w+) (INTEGER|DOUBLE|VARCHAR) = (.+?): (.+)")
_COLUMN = re.compile(r"(\w+(?:, \w+)*): (.+)")
_KINDS = {"INTEGER": int, "DOUBLE": float, "VARCHAR": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What a question can be asked for."""

    name: str
    kind: str
    """INTEGER, DOUBLE or VARCHAR."""
    default: Value
    about: str

    def literal(self, value: Value) -> str:
        """The value in SQL. Raises `DatabaseError` where it is not of the parameter's kind."""
        if value is None:
            return f"NULL::{self.kind}"
        try:
            typed = _KINDS[self.kind](value)
        except ValueError:
            raise DatabaseError(f"{self.name} = {value!r}: expected {self.kind} ({self.about})") from None
        if not isinstance(typed, str):
            return str(typed)
        return "'" + typed.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, and the SQL that answers it."""

    number: int
    name: str
    title: str
    """The question itself."""
    reading: str
    """How to read the answer."""
    parameters: tuple[Parameter, ...]
    columns: tuple[tuple[str, str], ...]
    """Columns of the answer, in order, with what they mean; columns that are explained together share a line."""
    query: str
    """With `$name` for every parameter."""

    @property
    def column_names(self) -> list[str]:
        """Of the answer, in order."""
        return [name for names, _ in self.columns for name in names.split(", ")]

    def sql(self, given: Mapping[str, Value] | None = None) -> str:
        """The SQL to ask, with the values given and the defaults of the others.

        Raises `DatabaseError` for a parameter that the question does not take, or a value it cannot.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given or {}:
            if name not in known:
                takes = ", ".join(f"{own} ({known[own].about})" for own in known) or "none"
                raise DatabaseError(f"question {self.name} has no parameter {name}; it takes: {takes}")
        values = {name: parameter.default for name, parameter in known.items()} | dict(given or {})
        return re.sub(r"\$(\w+)", lambda found: known[found[1]].literal(values[found[1]]), self.query)


@cache
def all_questions() -> tuple[Question, ...]:
    """By number."""
    pages = [page for page in files(__name__).iterdir() if page.name.endswith(".sql")]
    return tuple(parse(page.name, page.read_text("utf-8")) for page in sorted(pages, key=lambda page: page.name))


def find_question(name_or_number: str) -> Question:
    """The question of that name or number. Raises `DatabaseError` with the nearest names."""
    wanted = name_or_number.replace("-", "_")
    for question in all_questions():
        if wanted in (question.name, str(question.number), f"{question.number:02}"):
            return question
    names = [question.name for question in all_questions()]
    near = difflib.get_close_matches(wanted, names, 3) or [name for name in names if wanted in name]
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise DatabaseError(f"there is no question {name_or_number}; {meant}`agrpo questions` lists all {len(names)}")


def parse(file_name: str, text: str) -> Question:
    """A question from its page, called such as `07_duplicates.sql`."""
    number, _, name = file_name.removesuffix(".sql").partition("_")
    lines = text.splitlines()
    length = next(place for place, line in enumerate(lines) if not line.startswith("--"))
    head = "\n".join(line.removeprefix("--").strip() for line in lines[:length])
    title, *sections = head.split("\n\n")
    parameters = [section for section in sections if _PARAMETER.match(section)]
    columns = sections[-1]
    reading = [section for section in sections[:-1] if section not in parameters]
    return Question(
        number=int(number),
        name=name,
        title=title,
        reading="\n\n".join(section.replace("\n", " ") for section in reading),
        parameters=tuple(_parameter(line) for section in parameters for line in section.splitlines()),
        columns=tuple(_column(file_name, line) for line in columns.splitlines()),
        query="\n".join(lines[length:]).strip(),
    )


def _parameter(line: str) -> Parameter:
    found = _PARAMETER.fullmatch(line)
    assert found, f"not `$name TYPE = default: about`: {line}"
    name, kind, default, about = found.groups()
    value = None if default == "NULL" else _KINDS[kind](default.strip("'"))
    return Parameter(name=name, kind=kind, default=value, about=about)


def _column(file_name: str, line: str) -> tuple[str, str]:
    found = _COLUMN.fullmatch(line)
    assert found, f"{file_name}: not `column: what it is`: {line}"
    return found[1], found[2]


__all__ = ["Parameter", "Question", "Value", "all_questions", "find_question", "parse"]
