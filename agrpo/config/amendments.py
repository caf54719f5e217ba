"""Amendments: which settings of a run may change when it is resumed, and which decide what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

AMENDABLE = (
    "stop.*",
    "checkpoint.*",
    "recorder.*",
    "supervision.*",
    "store.*",
    "workers.*",
    "resume.*",
    "model.activation_checkpointing",
    "model.trust_remote_code",
    "rewards.*.timeout_seconds",
    "rewards.*.memory_bytes",
    "rewards.*.settings.load_seconds",
    "engine.request_timeout_seconds",
    "engine.base_urls",
    "engine.serve",
    "engine.replicas",
    "engine.environment",
    "engine.arguments",
    "engine.served_model",
    "engine.max_model_len",
    "engine.weights",
    "engine.api_key_variable",
    "engine.start_seconds",
    "engine.outage_seconds",
    "engine.load_seconds",
    "async.max_concurrent_rollouts",
    "async.scoring_queue",
    "rollout_loop.timeout_seconds",
)
"""Settings that decide no value of a run: where and how the work is done, and when it is given up."""
OF_FACTORIES = {"openenv": ("url", "connect_seconds", "token_variable")}
"""The same of environments, by the factory: what the settings of others decide is not known."""
PLACE = "run.dir"
"""Where a run was found says where it is, whatever it was called from there."""
HORIZON = ("stop.max_steps", "stop.epochs")
"""Settings that a decaying schedule ends at."""
DECAYING = ("linear", "cosine")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One setting that is asked for under another value than the run has."""

    key: str
    """`table.setting`."""
    has: Any
    asked: Any
    scheduler: str = "constant"
    """The run's schedule of learning rates."""
    factory: Any = None
    """Of the run's environment whose setting it is."""

    @property
    def allowed(self) -> bool:
        if self.key in HORIZON and self.scheduler in DECAYING:
            return False
        if self.key.startswith("environments."):
            return self.key.rpartition(".settings.")[2] in OF_FACTORIES.get(str(self.factory), ())
        return any(fnmatchcase(self.key, pattern) for pattern in AMENDABLE)

    def __str__(self) -> str:
        why = f'; its schedule "{self.scheduler}" decays to the last step' if self.key in HORIZON else ""
        return f"{self.key}: the run has {_shown(self.has)}, {_shown(self.asked)} is asked for{why}"


def changes(has: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Change]:
    """What differs between two resolved trees of settings, by key."""
    one, other = _flat(has), _flat(asked)
    scheduler = str(one.get("optimizer.scheduler", "constant"))
    return [
        Change(
            key=key,
            has=one.get(key),
            asked=other.get(key),
            scheduler=scheduler,
            factory=one.get(f"{key.rpartition('.settings.')[0]}.factory"),
        )
        for key in sorted(one.keys() | other.keys())
        if key != PLACE and one.get(key) != other.get(key)
    ]


def amended(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the tree with other values for some `table.setting`s, or `table.0.setting`s in a list of tables.

    Of what a part or a factory is given (`table.settings.name`), None leaves the name out.
    """
    tables = {name: _copied(table) for name, table in tree.items()}
    for key, value in values.items():
        *tables_above, setting = key.split(".")
        place: Any = tables
        for name in tables_above:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        if value is None and "settings" in tables_above:
            place.pop(setting, None)
        else:
            place[setting] = value
    return tables


def _copied(table: Any) -> Any:
    if isinstance(table, list):
        return [_copied(entry) for entry in table]
    return {name: _copied(value) for name, value in table.items()} if isinstance(table, Mapping) else table


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Every value under its dotted key. A list of tables is numbered; any other list is a value."""
    if isinstance(tree, list | tuple) and tree and all(isinstance(item, Mapping) for item in tree):
        tree = dict(enumerate(tree))
    if not isinstance(tree, Mapping):
        return {prefix.removesuffix("."): list(tree) if isinstance(tree, tuple) else tree}
    return {key: value for name, inner in tree.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}


def _shown(value: Any) -> str:
    return "none" if value is None else f'"{value}"' if isinstance(value, str) else str(value)
