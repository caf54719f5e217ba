"""What a run was told: the settings that are no defaults, and how the settings of several runs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agrpo.instruments.report.wording import NOTHING, plain

ITSELF = ("run.name", "run.dir")
"""Settings in which two runs always differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenSetting:
    """One setting that a file, the command line or a recipe gave."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One setting or package in which runs differ."""

    key: str
    values: tuple[str, ...]
    """Of each run."""


def given_settings(document: Mapping[str, Any]) -> tuple[GivenSetting, ...]:
    """In alphabetical order. An origin that is a file is named without its folder."""
    tree, origins = document["settings"]["tree"], document["settings"]["origins"]
    return tuple(
        GivenSetting(key=key, value=plain(_at(tree, key)), origin=Path(origins[key]).name) for key in sorted(origins)
    )


def differences(documents: Sequence[Mapping[str, Any]]) -> tuple[Difference, ...]:
    """Settings, packages and versions that are not the same in all runs."""
    flat = [_flat(document) for document in documents]
    keys = sorted({key for one in flat for key in one} - set(ITSELF))
    rows = [Difference(key=key, values=tuple(one.get(key, NOTHING) for one in flat)) for key in keys]
    return tuple(row for row in rows if len(set(row.values)) > 1)


def _flat(document: Mapping[str, Any]) -> dict[str, str]:
    found = dict(_leaves(document["settings"]["tree"], ""))
    found |= {f"package {name}": str(version) for name, version in document.get("packages", {}).items()}
    for key in ("agrpo_version", "host", "prompts_digest"):
        if key in document:
            found[key.replace("_", " ")] = str(document[key])
    return found


def _leaves(value: object, where: str) -> Iterator[tuple[str, str]]:
    """Every plain value below, with its dotted key; tables of a list are counted from 0."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{where}.{place}")
    else:
        yield where, plain(value)


def _at(tree: Mapping[str, Any], key: str) -> object:
    """The value at a dotted key."""
    value: Any = tree
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
