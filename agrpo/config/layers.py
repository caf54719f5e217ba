"""Layers: defaults < recipes < file < `--set key=value`, each value with where it came from."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agrpo.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Resolved values by table, and the origin of each that is no default."""

    tree: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Beneath:
    """A tree that lies under a run's own settings, such as a recipe's. Its `rewards` are added to the run's."""

    origin: str
    tree: Mapping[str, Any]


Beneaths = Callable[[Mapping[str, Any]], Sequence[Beneath]]
"""From a run's own settings to what lies under them."""


def resolve(
    file: Path | None = None,
    sets: Iterable[str] = (),
    values: Mapping[str, Any] | None = None,
    *,
    beneath: Beneaths | None = None,
) -> Settings:
    """Layer the settings. `sets`: `table.key=value` in TOML's notation; `values`: a tree under the file.

    `beneath`: trees under all of these. Raises `ConfigError` where two of them differ in what the run itself leaves open.
    """
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if values is not None:
        _lay(tree, origins, values, "built in")
    if file is not None:
        _lay(tree, origins, _read_toml(file), str(file))
    for setting in sets:
        path, value = _parse_set(setting)
        _refuse_inside_list(tree, path, setting)
        _lay(tree, origins, _nest(path, value), "--set")
    if beneath is not None:
        _lay_beneath(tree, origins, beneath(tree))
    return Settings(tree=tree, origins=origins)


def _lay_beneath(tree: dict[str, Any], origins: dict[str, str], layers: Sequence[Beneath]) -> None:
    """Fill in what the run leaves open. Where it chooses another part for a table, the layer's settings are of no use there."""
    own = {*origins}
    for layer in layers:
        for table, given in layer.tree.items():
            if table == "rewards":
                _add_rewards(tree, origins, given, layer.origin)
                continue
            asked = tree.setdefault(table, {})
            if not isinstance(asked, dict) or _is_other_part(asked, given, own, table):
                continue
            for key, value in given.items():
                where = f"{table}.{key}"
                if where in own:
                    continue
                if where in origins and asked[key] != value:
                    raise ConfigError(
                        f"{where}: {origins[where]} sets {asked[key]!r}, {layer.origin} {value!r}; leave one of them out, or set it "
                        "yourself in the run's file or with --set"
                    )
                asked[key] = value
                origins.setdefault(where, layer.origin)


def _is_other_part(asked: Mapping[str, Any], given: Mapping[str, Any], own: set[str], table: str) -> bool:
    return f"{table}.name" in own and "name" in given and asked["name"] != given["name"]


def _add_rewards(
    tree: dict[str, Any], origins: dict[str, str], given: Sequence[Mapping[str, Any]], origin: str
) -> None:
    listed = tree.get("rewards", [])
    if not isinstance(listed, list):
        return
    rewards = [*cast("list[Any]", listed)]
    names = [each.get("name") for each in rewards if isinstance(each, Mapping)]
    for reward in given:
        if reward["name"] not in names:
            origins[f"rewards.{len(rewards)}"] = origin
            rewards.append(dict(reward))
    tree["rewards"] = rewards


def load_settings(document: Mapping[str, Any]) -> Settings:
    """The settings that `run.json` keeps."""
    return Settings(tree=document["settings"]["tree"], origins=document["settings"]["origins"])


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; give the path of a run's TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _parse_set(setting: str) -> tuple[list[str], Any]:
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f'--set {setting}: expected "table.key=value", such as --set optimizer.learning_rate=1e-5')
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    if value == {}:
        raise ConfigError(
            f"--set {setting}: an empty table sets nothing; name the key, such as --set stop.max_steps=10"
        )
    return path.strip().split("."), value


def _refuse_inside_list(tree: Mapping[str, Any], path: list[str], setting: str) -> None:
    node: Any = tree
    for depth, key in enumerate(path):
        if isinstance(node, list):
            table = ".".join(path[:depth])
            raise ConfigError(
                f"--set {setting}: {table} is a list, whose entries cannot be set from the command line; change them in the file, "
                f"or give the whole list, such as --set '{table}=[…]'"
            )
        node = node.get(key) if isinstance(node, Mapping) else None


def _nest(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value


def _lay(
    tree: dict[str, Any], origins: dict[str, str], layer: Mapping[str, Any], origin: str, prefix: str = ""
) -> None:
    for key, value in layer.items():
        where = f"{prefix}{key}"
        if isinstance(value, Mapping) and isinstance(tree.get(key, {}), dict):
            _lay(tree.setdefault(key, {}), origins, value, origin, f"{where}.")
        else:
            tree[key] = value
            origins[where] = origin
