"""What is asked of a run: checked whole before anything is written, and the same under one name for ever."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agrpo.config import RewardSection, RunConfig, Settings, load_settings, resolve
from agrpo.errors import ConfigError, RolloutNotFound
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.whatifs import WhatIfs
from agrpo.records.whatif import WhatIf
from agrpo.rewards import check_reward
from agrpo.rollout_loop.finding import loop_class, overrides

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A what-if with all it takes to answer it."""

    whatif: WhatIf
    recorded: RunConfig
    """The run's own settings."""
    asked: RunConfig
    """The same with the other reward or advantage."""

    @property
    def reward(self) -> RewardSection | None:
        """The reward to ask; None where the recorded rewards stand."""
        return self.asked.rewards[0] if self.whatif.kind == "reward" else None


def ask_reward(
    folder: RunFolder, part: str, sets: list[str], *, keep: bool = False, name: str | None = None
) -> Question:
    """Another reward, in the place of all rewards of the run, or beside them (`keep`).

    `sets`: `key=value` of its `[[rewards]]` table. Raises `ConfigError`, or `RolloutNotFound` for a run without groups.
    """
    settings = _given(sets)
    asked = _laid_over(folder, {"rewards": [{"name": part, **settings}]})
    problems = check_reward(asked.rewards[0])
    if problems:
        raise ConfigError(problems)
    return _question(folder, asked, WhatIf(
        name=name or _plain_name(part), kind="reward", part=part, settings=settings, keep=keep,
        code=_digest_of(part.partition(":")[0] if ":" in part else f"agrpo.rewards.{part}"), begun_at=time.time(),
    ))  # fmt: skip


def ask_advantage(folder: RunFolder, part: str, sets: list[str], *, name: str | None = None) -> Question:
    """Another advantage over the recorded rewards. `sets`: `key=value` of its `[advantage]` table. Raises as `ask_reward`."""
    settings = _given(sets)
    asked = _laid_over(folder, {"advantage": {"name": part, **settings}})
    return _question(folder, asked, WhatIf(
        name=name or _plain_name(part), kind="advantage", part=part, settings=settings,
        code=_digest_of(type(asked.advantage).__module__), begun_at=time.time(),
    ))  # fmt: skip


def begin(folder: RunFolder, question: Question) -> Question:
    """Write down what is asked, or go on with what was. Raises `ConfigError` where the name asked something else."""
    whatifs, wanted = WhatIfs(folder.filesystem), question.whatif
    if whatifs.begin(wanted):
        return question
    found = whatifs.read(wanted.name)
    assert found is not None, "a document that could not be created is there"
    differing = _differing(found, wanted)
    if differing:
        raise ConfigError(
            f"{folder.url} has a what-if {wanted.name} already, which asked something else: {'; '.join(differing)}. "
            "Give this one another name with --name"
        )
    return replace(question, whatif=found)


def _question(folder: RunFolder, asked: RunConfig, whatif: WhatIf) -> Question:
    if not _NAME.fullmatch(whatif.name):
        raise ConfigError(f"--name {whatif.name}: expected up to 64 letters, digits, dots, dashes and underscores")
    if not folder.scored.numbers():
        raise RolloutNotFound(
            f"{folder.url} has no scored group yet: there is nothing to ask; `agrpo watch {folder.url}` shows what it waits for"
        )
    recorded = RunConfig.build(load_settings(folder.document()))
    if overrides(loop_class(recorded.rollout_loop), "compute_advantages"):
        raise ConfigError(
            f"{folder.url}: its advantages are those of {recorded.rollout_loop.path}, whose compute_advantages a what-if does not "
            "ask; the advantages of its steps are in the table samples"
        )
    for config in (recorded, asked):
        if config.advantage.spans_step:
            raise ConfigError(
                f"the advantage {config.settings.tree['advantage']} is made of all groups that a step trains, and a what-if takes "
                "groups one by one, those that no step trained too; ask about one that is made of a group alone, such as grpo "
                'with scale = "group"'
            )
    return Question(whatif=whatif, recorded=recorded, asked=asked)


def _given(sets: list[str]) -> dict[str, Any]:
    settings = resolve(sets=sets).tree
    if "name" in settings:
        raise ConfigError("--set name=…: the part's name is what --reward or --advantage gives")
    return settings


def _laid_over(folder: RunFolder, tables: Mapping[str, Any]) -> RunConfig:
    """The run's settings with other tables. Raises `ConfigError` for what these cannot be."""
    tree = dict(load_settings(folder.document()).tree)
    if (
        "rewards" in tables
    ):  # which these may name; they stay as the run has them, and are not asked of what is laid over it
        tree.pop("filters", None)
        tree["step"] = {**tree.get("step", {}), "zero_variance_reward": None}
    return RunConfig.build(Settings(tree={**tree, **tables}, origins=dict.fromkeys(tables, "--set")))


def _plain_name(part: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", part).strip("-")[:64]


def _digest_of(module: str) -> str:
    """Of the module's file, so that a function that was changed is not taken for what it was."""
    spec = importlib.util.find_spec(module)
    file = Path(spec.origin) if spec and spec.origin else None
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() if file and file.is_file() else ""


def _differing(found: WhatIf, wanted: WhatIf) -> list[str]:
    pairs = {field: (getattr(found, field), getattr(wanted, field)) for field in ("kind", "part", "settings", "keep")}
    told = [f"{field} was {was!r} and is {now!r}" for field, (was, now) in pairs.items() if was != now]
    changed = found.code != wanted.code and not told
    return [*told, *(["the code of its module has changed since"] if changed else [])]
