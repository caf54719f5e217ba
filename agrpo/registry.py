"""The name is the file: `losses["clip"]` is the part defined in `agrpo/losses/clip.py`.

A *part* is a frozen object whose fields are its knobs and whose call is its work. A *registry* finds the parts of one
room: every module directly in the room defines one part (support code lives in the room's `__init__` and subpackages),
and other packages add parts through an entry point group named like the room (`agrpo.losses`).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Generic, TypeVar, cast, dataclass_transform

import pydantic
import pydantic.dataclasses

from agrpo.errors import ConfigError, UnknownName

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def part(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass whose fields are checked and whose unknown fields are refused."""
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=True)
    made = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    made.__agrpo_part__ = True  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]


def nearest(name: str, known: list[str]) -> str:
    """`did you mean "…"?`, or the known names where none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(sorted(known))}"


class Registry(Generic[T]):
    """The parts of one room, by name. `package` is the room's dotted path, and its entry point group."""

    def __init__(self, package: str) -> None:
        self.package = package

    def names(self) -> list[str]:
        """Names that `self[name]` finds, sorted."""
        room = importlib.import_module(self.package)
        files = {module.name for module in pkgutil.iter_modules(room.__path__) if not module.ispkg}
        return sorted(files | {entry.name for entry in self._plugins()})

    def __getitem__(self, name: str) -> type[T]:
        """The part's class. Raises `UnknownName` with the nearest name."""
        module_name = self._module_name(name)
        if module_name in self.names():
            for entry in self._plugins():
                if entry.name == name:
                    return entry.load()
            return self._defined_in(importlib.import_module(f"{self.package}.{module_name}"))
        room = self.package.rpartition(".")[2]
        raise UnknownName(f'{room} has no part named "{name}"; {nearest(name, self.names())}')

    def build(self, name: str, settings: Mapping[str, Any]) -> T:
        """The part with these knobs. Raises `UnknownName`, or `ConfigError` with one sentence per bad knob."""
        cls = self[name]
        try:
            return cls(**settings)
        except pydantic.ValidationError as error:
            raise ConfigError(problems_of(error, knobs_of(cls))) from None

    def _plugins(self) -> EntryPoints:
        return _entry_points(tuple(sys.path)).select(group=self.package)

    @staticmethod
    def _module_name(name: str) -> str:
        plain = name.replace("-", "_")
        return f"r_{plain}" if plain[:1].isdigit() else plain

    @staticmethod
    def _defined_in(module: Any) -> type[Any]:
        parts = [
            value
            for value in vars(module).values()
            if inspect.isclass(value) and value.__module__ == module.__name__ and hasattr(value, "__agrpo_part__")
        ]
        assert len(parts) == 1, f"{module.__name__} defines {len(parts)} parts, a module of a room defines one"
        return parts[0]


@cache
def _entry_points(paths: tuple[str, ...]) -> EntryPoints:
    """What is installed on these paths, which are those of this process. Finding out reads a file of every package."""
    del paths
    return cast("EntryPoints", entry_points())  # Python 3.11 calls it otherwise, and it can do the same


def knobs_of(cls: type[Any]) -> list[str]:
    """Names of a part's settings."""
    return [field.name for field in fields(cls)]


def problems_of(error: pydantic.ValidationError, known: list[str], prefix: str = "") -> list[str]:
    """One sentence per problem pydantic found: where, what was given, what was expected."""
    problems: list[str] = []
    for detail in error.errors():
        where = prefix + ".".join(str(piece) for piece in detail["loc"])
        if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            problems.append(f"{where}: unknown setting; {nearest(str(detail['loc'][-1]), known)}")
        elif detail["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
            problems.append(f"{where}: missing; this setting has no default")
        else:
            message = detail["msg"].removeprefix("Value error, ")
            problems.append(f"{where} = {detail['input']!r}: {message[:1].lower()}{message[1:]}")
    return problems
