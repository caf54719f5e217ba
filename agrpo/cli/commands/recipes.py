"""`agrpo recipes`: papers' settings by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agrpo.cli.commands import Panel
from agrpo.cli.printing import print_rows, say
from agrpo.errors import ConfigError

if TYPE_CHECKING:
    from agrpo.recipes import Recipe

PANEL = Panel.TRAIN


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME | diff NAME NAME]", help="One recipe, or two to hold against each other."),
    ] = None,
) -> None:
    """List the recipes: what papers set, by the paper's name. With a name: every value, where it is from, what a test holds.

    `agrpo train run.toml --recipe dapo,tis` lays them under the run's own settings, which win.

    Example: agrpo recipes dapo

    Example: agrpo recipes diff grpo dapo
    """
    from agrpo.recipes import find
    from agrpo.recipes import recipes as known

    match words or []:
        case []:
            print_rows(
                ["recipe", "kind", "what it does"], [[each.name, each.kind, each.about] for each in known().values()]
            )
        case ["diff", one, other]:
            _print_difference(find(one), find(other))
        case [name] if name != "diff":
            _print_recipe(find(name))
        case _:
            raise ConfigError(
                f"agrpo recipes {' '.join(words or [])}: expected nothing, one name, or `diff` and two names"
            )


def _print_recipe(recipe: Recipe) -> None:
    say(f"{recipe.name} ({recipe.kind}, version {recipe.version})")
    say(recipe.about)
    say(f"Paper: {recipe.paper}")
    if recipe.needs:
        say(f"Needs: {' or '.join(recipe.needs)} before it")
    if recipe.deviations:
        say(f"Deviations: {recipe.deviations}")
    if recipe.expected:
        say(f"Expected: {recipe.expected}")
    print_rows(
        ["setting", "value", "from"], [[key, json.dumps(value), origin] for key, value, origin in _resolved(recipe)]
    )


def _resolved(recipe: Recipe) -> list[tuple[str, Any, str]]:
    """Every value of the tables that the recipe speaks of, defaults too, with its origin."""
    from agrpo.recipes.resolving import resolved

    return [(each.key, each.value, each.origin) for each in resolved([recipe])]


def _print_difference(one: Recipe, other: Recipe) -> None:
    from agrpo.recipes.resolving import resolved

    left, right = ({each.key: each.value for each in resolved([recipe])} for recipe in (one, other))
    rows = [
        [key, json.dumps(left[key]) if key in left else "-", json.dumps(right[key]) if key in right else "-"]
        for key in [*left, *(key for key in right if key not in left)]
        if key not in left or key not in right or left[key] != right[key]
    ]
    print_rows(["setting", one.name, other.name], rows)
