"""Recipes: what a paper sets, by the paper's name, as a partial tree of settings.

A base says what a step minimises, a modifier changes one thing about it. They are laid under a run's file:

    defaults  <  recipes, from left to right  <  file  <  --set key=value

A recipe downloads nothing and names neither model nor prompts. Its docstring says where agrpo departs from the paper and what
numbers a test holds it to.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from agrpo.config.layers import Beneath, Beneaths
from agrpo.errors import ConfigError
from agrpo.registry import nearest

Tree = dict[str, Any]
Maker = Callable[["Asked"], Tree]

PAGES = ("group_relative", "clipping", "mismatch", "several_rewards")
"""Modules of the room, in the order that recipes are listed in."""
OPEN_BAND: Tree = {"importance_min": 0.0, "importance_max": "inf"}
"""Of `loss.clip`: no token is masked by its ratio, since the paper masks none."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What of a run's own settings a recipe may depend on."""

    rewards: Sequence[str] = ()
    """Names of the rewards in the run's file."""
    max_completion_length: int | None = None
    """Tokens, where the file or the command line says so."""

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Asked:
        """What a run's own settings, unchecked as yet, say of it."""
        rewards, engine = tree.get("rewards", []), tree.get("engine", {})
        names = [each.get("name") for each in rewards if isinstance(each, Mapping)] if isinstance(rewards, list) else []
        length = engine.get("max_completion_length") if isinstance(engine, Mapping) else None
        return cls(
            rewards=[name for name in names if isinstance(name, str)],
            max_completion_length=length if isinstance(length, int) else None,
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One paper's settings."""

    name: str
    kind: Literal["base", "modifier"]
    paper: str
    """Its title, and where it is found."""
    about: str
    """One line."""
    deviations: str
    """Where agrpo departs from it; empty: nowhere."""
    expected: str
    """What a test holds it to."""
    version: int
    needs: tuple[str, ...]
    """Bases of which one must come before it; empty: any, or none."""
    make: Maker

    def settings(self, asked: Asked | None = None) -> Tree:
        """The partial tree. `rewards` are added to those of the run's file, all else is laid under it."""
        return self.make(asked or Asked())

    @property
    def origin(self) -> str:
        """As settings tell where they are from."""
        return f"recipe {self.name}, version {self.version}"


def recipe(
    name: str,
    *,
    kind: Literal["base", "modifier"],
    paper: str,
    version: int = 1,
    needs: tuple[str, ...] = (),
) -> Callable[[Maker], Recipe]:
    """Make a recipe of a function. Its docstring: one line, then `Deviations:` and `Expected:` paragraphs where there are any."""

    def make(function: Maker) -> Recipe:
        text = inspect.getdoc(function) or ""
        return Recipe(
            name=name,
            kind=kind,
            paper=paper,
            about=text.partition("\n")[0].strip(),
            deviations=_paragraph(text, "Deviations"),
            expected=_paragraph(text, "Expected"),
            version=version,
            needs=needs,
            make=function,
        )

    return make


def _paragraph(text: str, title: str) -> str:
    found = re.search(rf"^{title}: (.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


@cache
def recipes() -> Mapping[str, Recipe]:
    """All of them, by name."""
    pages = [importlib.import_module(f"agrpo.recipes.{page}") for page in PAGES]
    found = [value for page in pages for value in vars(page).values() if isinstance(value, Recipe)]
    return {each.name: each for each in found}


ALIASES = {"cispo": "scalerl", "dr_grpo": "dr-grpo", "drgrpo": "dr-grpo", "grpo-2": "2-grpo"}
"""Names that the field also uses."""


def find(name: str) -> Recipe:
    """The recipe of that name; `_` counts as `-`. Raises `ConfigError` with close names (P-906)."""
    plain = ALIASES.get(name, name.replace("_", "-"))
    known = recipes()
    if plain not in known:
        raise ConfigError(f'no recipe is called "{name}"; {nearest(plain, list(known))} `agrpo recipes` lists them')
    return known[plain]


def chosen(names: str | Iterable[str]) -> list[Recipe]:
    """The recipes of `dapo,tis`, in that order. Raises `ConfigError` for two bases, or a modifier of another base (P-903)."""
    told = names.split(",") if isinstance(names, str) else list(names)
    found = [find(name.strip()) for name in told if name.strip()]
    if not found:
        raise ConfigError(f'--recipe {names!r}: names no recipe; give one or several, such as "dapo,tis"')
    bases = [each.name for each in found if each.kind == "base"]
    if len(bases) > 1:
        raise ConfigError(
            f"--recipe: {' and '.join(bases)} each say what a step minimises; choose one, and modifiers after it"
        )
    twice = next((each.name for place, each in enumerate(found) if each in found[:place]), None)
    if twice is not None:
        raise ConfigError(f"--recipe: {twice} is named twice")
    for place, each in enumerate(found):
        if each.needs and not {before.name for before in found[:place]} & {*each.needs}:
            raise ConfigError(
                f"--recipe: {each.name} modifies {' or '.join(each.needs)}; name that before it, such as "
                f"--recipe {each.needs[0]},{each.name}"
            )
    return found


def beneath(names: str | Iterable[str] | None) -> Beneaths | None:
    """What `resolve` lays under a run's settings for `--recipe`. None: nothing was named."""
    if names is None:
        return None
    found = chosen(names)

    def layers(tree: Mapping[str, Any]) -> list[Beneath]:
        asked = Asked.of(tree)
        return [Beneath(origin=each.origin, tree=each.settings(asked)) for each in found]

    return layers


def fitting_length(asked: Asked, paper: int) -> int:
    """Most tokens of an answer: the run's own, where it says so."""
    return paper if asked.max_completion_length is None else asked.max_completion_length
