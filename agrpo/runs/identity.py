"""What a run began with: digests of its files and prompts, and the machine, as `run.json` holds them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xxhash

import agrpo
from agrpo.classifiers.files import deciding_files
from agrpo.config import RunConfig, load_settings
from agrpo.errors import ConfigError
from agrpo.queue.run_folder import RunFolder
from agrpo.runs.checks import ROWS_CHECKED
from agrpo.runs.memory import machine_here, plan_memory, reward_models
from agrpo.templates import template_at


def run_document(config: RunConfig, name: str, now: datetime) -> dict[str, Any]:
    """What `run.json` says of a run that begins now."""
    tree = config.settings.tree
    return {
        "schema": "run",
        "schema_version": "1.0",
        "name": name,
        "created_at": now.isoformat(),
        "agrpo_version": agrpo.__version__,
        "settings": {"tree": tree, "origins": config.settings.origins},
        "config_digest": _digest(json.dumps(tree, sort_keys=True).encode()),
        "model_digests": _model_digests(config),
        "weights_digests": _weights_digests(config),
        "reward_model_digests": _reward_model_digests(config),
        "prompts_per_epoch": len(config.prompts.source()),
        "prompts_digest": _prompts_digest(config),
        "threads": max(1, _cores() // 2),
        "learner_threads": config.workers.learner_threads or max(1, _cores() // 2),
        "memory": plan_memory(config, machine_here()).document(),
        "host": platform.node(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in ("torch", "transformers", "prefect", "duckdb", "pyarrow")},
    }


def check_unchanged(folder: RunFolder) -> None:
    """Refuse to go on with a run whose model files, reward model's or prompts are others than it began with.

    Raises `ConfigError`.
    """
    document = folder.document()
    if "model_digests" not in document:
        return
    config = RunConfig.build(load_settings(document))
    found = {**_model_digests(config), "prompts": _prompts_digest(config)}
    began = {**document["model_digests"], "prompts": document["prompts_digest"]}
    for name, digests in (("weights_digests", _weights_digests), ("reward_model_digests", _reward_model_digests)):
        if name in document:
            found, began = {**found, **digests(config)}, {**began, **document[name]}
    changed = sorted(name for name in found.keys() | began.keys() if found.get(name) != began.get(name))
    if changed:
        raise ConfigError(
            f"{folder.url} began with other files than are there now; changed: {', '.join(changed)}. Put them back to resume "
            "this run, or start a new one"
        )


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def _prompts_digest(config: RunConfig) -> str:
    """Of the number of rows and the first of them."""
    rows = config.prompts.source()
    first = [dict(rows[index]) for index in range(min(len(rows), ROWS_CHECKED))]
    return _digest(json.dumps([len(rows), first], sort_keys=True, default=str).encode())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _file_digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, xxhash.xxh3_128).hexdigest()


def _model_digests(config: RunConfig) -> dict[str, str]:
    """Of the files that decide what a token means."""
    folder = Path(config.model.path)
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    digests = {name: _digest((folder / name).read_bytes()) for name in names if (folder / name).is_file()}
    if config.model.chat_template is not None:
        digests["model.chat_template"] = _digest(template_at(config.model.chat_template).encode())
    return digests


def _weights_digests(config: RunConfig) -> dict[str, str]:
    """Of the files of the first weights, from which a run begins again where no checkpoint is left."""
    folder = Path(config.model.path)
    return {file.name: _file_digest(file) for file in sorted(folder.glob("*.safetensors"))}


def _reward_model_digests(config: RunConfig) -> dict[str, str]:
    """Of the files by which a reward model's values come out as they do."""
    return {
        f"reward_model.{name}": _file_digest(file)
        for model in reward_models(config)
        for name, file in sorted(deciding_files(model.source).items())
    }
