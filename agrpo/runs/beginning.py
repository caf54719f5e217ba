"""Runs begun: checked before anything starts, each in a folder of its own; and runs asked to go back."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from agrpo.config import RunConfig, Settings, load_settings
from agrpo.errors import ConfigError
from agrpo.queue.filesystems.opening import open_filesystem, probe
from agrpo.queue.history import newest_done
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Rewind
from agrpo.runs.checks import check, impatience, unreached_lengths
from agrpo.runs.identity import run_document
from agrpo.runs.idle_gpus import idle_gpus
from agrpo.runs.memory import MemoryPlan, machine_here, plan_memory, problems, warnings
from agrpo.runs.publishing import adapter_sentence, precision_sentence, settled
from agrpo.templates import TEMPLATES

logger = logging.getLogger(__name__)


def refuse_problems(settings: Settings, *, folder: str | None = None) -> RunConfig:
    """The checked settings, settled. Raises `ConfigError` with everything that would keep the run from working."""
    config = settled(RunConfig.build(with_whole_paths(settings)))
    problems = check(config, folder=folder)
    if problems:
        raise ConfigError(problems)
    return config


def prepare(settings: Settings, *, folder: str | None = None) -> RunFolder:
    """Check everything and begin a run. `folder`: instead of `{run.dir}/{run.name}-{utc}`. Raises `ConfigError`.

    Nothing is written where something is wrong.
    """
    config = refuse_problems(settings, folder=folder)
    _tell_of_adapter(config, settings)
    if (sentence := precision_sentence(config)) is not None:
        logger.info(sentence)
    now = datetime.now(UTC)
    name = f"{config.run.name}-{now:%Y%m%dT%H%M%S}"
    url = folder or f"{config.run.dir.rstrip('/')}/{name}"
    if "://" not in url:
        url = str(Path(url).absolute())
    probe(open_filesystem(url))
    machine = machine_here()
    for warning in [*idle_gpus(config, machine), *unreached_lengths(config), *impatience(config)]:
        logger.warning(warning)
    _warn_of_memory(plan_memory(config, machine))
    return RunFolder.create(url, run_document(config, name if folder is None else Path(url).name, now))


def refuse_too_large(folder: RunFolder) -> None:
    """Plan the memory of a run that goes on here. Raises `ConfigError` where it cannot fit; warns where it is tight."""
    document = folder.document()
    if "model_digests" not in document:
        return  # it was not begun by `prepare`
    plan = plan_memory(RunConfig.build(load_settings(document)), machine_here())
    if found := problems(plan):
        raise ConfigError(found)
    _warn_of_memory(plan)


def _warn_of_memory(plan: MemoryPlan) -> None:
    for warning in warnings(plan):
        logger.warning(warning)


def _tell_of_adapter(config: RunConfig, settings: Settings) -> None:
    sentence = adapter_sentence(settings)
    if sentence is None:
        return
    logger.info(sentence)
    if config.checkpoint.save_steps is None:
        logger.warning(
            "adapter: only the last step's is kept for you, and published versions are removed as they get old; set "
            "checkpoint.save_steps to keep others"
        )


def go_back(folder: RunFolder, step: int) -> None:
    """Ask that the run goes back to `step` when it is resumed. Raises `ConfigError` for a step it has not done."""
    done = newest_done(folder)
    last = done.step if done else 0
    if not 0 <= step <= last:
        raise ConfigError(f"--from-step {step}: {folder.url} has done steps 1 to {last}; choose one of 0 to {last}")
    # First the word that the run is over is taken back: with the wish alone, generators would end before they are needed.
    hint = folder.hint()
    if hint is not None:
        folder.write_hint(replace(hint, finished=False, written_at=time.time()))
    number = max(folder.rewinds(), default=-1) + 1
    while not folder.write_rewind(Rewind(number=number, step=step, asked_at=time.time())):
        number += 1


def with_whole_paths(settings: Settings) -> Settings:
    """The same settings, such that they mean the same files from any folder, and `~` the home of who begins the run."""
    tree = {table: dict(values) if isinstance(values, dict) else values for table, values in settings.tree.items()}
    for table in ("model", "prompts"):
        values = tree.get(table)
        if isinstance(values, dict):
            _make_whole(values, "path", always=values.get("name") == "files")
    if isinstance(rewards := tree.get("rewards"), list):
        tree["rewards"] = [_with_whole_files(reward) for reward in rewards]
    model = tree.get("model")
    if (
        isinstance(model, dict)
        and isinstance(template := model.get("chat_template"), str)
        and template not in TEMPLATES
    ):
        path = os.path.expanduser(template)
        model["chat_template"] = os.path.abspath(path) if os.path.exists(path) else template
    engine, run = tree.get("engine"), tree.get("run")
    if isinstance(engine, dict) and isinstance(engine.get("environment"), str):
        engine["environment"] = os.path.abspath(os.path.expanduser(engine["environment"]))
    if isinstance(run, dict) and isinstance(run.get("dir"), str):
        run["dir"] = os.path.expanduser(run["dir"])
    return Settings(tree=tree, origins=settings.origins)


def _make_whole(values: dict[str, Any], name: str, *, always: bool = False) -> None:
    """`always`: whether it names a file even where none is there, and no id of the hub."""
    written = values.get(name)
    if not isinstance(written, str) or "://" in written:
        return
    path = os.path.expanduser(written)
    if os.path.exists(path) or written.startswith((".", "~")) or always:
        values[name] = os.path.abspath(path)


def _with_whole_files(reward: Any) -> Any:
    """A `[[rewards]]` table, whose knobs stand in it or in its `settings`."""
    if not isinstance(reward, dict) or reward.get("name") != "reward_model":
        return reward
    values = dict(cast("dict[str, Any]", reward))
    if isinstance(knobs := values.get("settings"), dict):
        values["settings"] = dict(cast("dict[str, Any]", knobs))
    for knobs in (values, values.get("settings")):
        for name in ("path", "tokenizer") if isinstance(knobs, dict) else ():
            _make_whole(cast("dict[str, Any]", knobs), name)
    return values
