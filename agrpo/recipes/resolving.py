"""What a run with recipes comes to where its file says nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agrpo.config import Beneath, RunConfig, Settings, resolve
from agrpo.recipes import Recipe

SPOKEN_OF = (
    *("engine", "step", "async", "optimizer", "advantage", "loss", "aggregation", "correction", "masks", "divergence"),
    *("entropy", "rewards"),
)
"""Tables that say how a policy is trained; the others say on what, and where."""
SOME_RUN: dict[str, Any] = {
    "model": {"path": "model"},
    "prompts": {"name": "files", "path": "prompts.jsonl"},
    "rewards": [{"name": "accuracy"}],
    "stop": {"max_steps": 1},
}
"""A file that leaves open all that a recipe may say."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """One resolved setting."""

    key: str
    value: Any
    origin: str


def settings_of(recipes: Sequence[Recipe]) -> Settings:
    """A run's settings under these recipes alone, defaults filled in. Raises `ConfigError` where they do not go together."""
    from agrpo.recipes import Asked

    asked = Asked.of(SOME_RUN)
    layers = [Beneath(origin=each.origin, tree=each.settings(asked)) for each in recipes]
    return RunConfig.build(resolve(values=SOME_RUN, beneath=lambda _: layers)).settings


def resolved(recipes: Sequence[Recipe]) -> list[Value]:
    """Every value that says how such a run is trained, in the order of a run's file."""
    settings = settings_of(recipes)
    found: list[Value] = []
    for table in SPOKEN_OF:
        values = settings.tree[table]
        entries = enumerate(values) if isinstance(values, list) else values.items()
        for key, value in entries:
            where = f"{table}.{key}"
            found.append(Value(key=where, value=value, origin=settings.origins.get(where, "default")))
    return [each for each in found if each.origin != "built in" and each.key != "rewards.0"]
