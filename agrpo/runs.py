"""Runs as wholes: checked before anything starts, begun in a folder of their own, found again by a short name."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agrpo
from agrpo.config import RunConfig, Settings, load_settings
from agrpo.errors import AgrpoError, ConfigError, PromptError, RunNotFound
from agrpo.prompts import DatasetRow, messages_of
from agrpo.queue.filesystems.opening import open_filesystem, probe
from agrpo.queue.history import newest_done
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint
from agrpo.rewards import check_reward

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_CHECKED = 10_000
"""Prompts looked at before a run starts; a bad one further on is refused alone when its turn comes."""
LIVING_SECONDS = 10.0
"""A run of which a stage has spoken since is running."""
SPARE_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One line of `agrpo runs`."""

    name: str
    url: str
    created_at: datetime
    state: str
    """`finished`, `running`, `unfinished` or `not started`."""
    steps: int
    max_steps: int | None
    reward: float | None
    """Mean reward of the last step."""


def check(config: RunConfig, *, folder: str | None = None) -> list[str]:
    """Everything outside the settings that would keep this run from working, a sentence each. Starts nothing."""
    problems = [*_check_model(config), *_check_prompts(config)]
    for reward in config.rewards:
        problems += check_reward(reward)
    return problems + _check_place(config, folder or config.run.dir)


def refuse_problems(settings: Settings, *, folder: str | None = None) -> RunConfig:
    """The checked settings. Raises `ConfigError` with everything that would keep the run from working."""
    config = RunConfig.build(_with_whole_paths(settings))
    problems = check(config, folder=folder)
    if problems:
        raise ConfigError(problems)
    return config


def prepare(settings: Settings, *, folder: str | None = None) -> RunFolder:
    """Check everything and begin a run. `folder`: instead of `{run.dir}/{run.name}-{utc}`. Raises `ConfigError`.

    Nothing is written where something is wrong.
    """
    config = refuse_problems(settings, folder=folder)
    now = datetime.now(UTC)
    name = f"{config.run.name}-{now:%Y%m%dT%H%M%S}"
    url = folder or f"{config.run.dir.rstrip('/')}/{name}"
    if "://" not in url:
        url = str(Path(url).absolute())
    probe(open_filesystem(url))
    return RunFolder.create(url, _document(config, name if folder is None else Path(url).name, now))


def _with_whole_paths(settings: Settings) -> Settings:
    """The same settings, such that they mean the same files from any folder."""
    tree = {table: dict(values) if isinstance(values, dict) else values for table, values in settings.tree.items()}
    for table in ("model", "prompts"):
        values = tree.get(table)
        path = values.get("path") if isinstance(values, dict) else None
        if not isinstance(values, dict) or not isinstance(path, str) or "://" in path:
            continue
        if os.path.exists(path) or path.startswith(".") or values.get("name") == "files":
            values["path"] = os.path.abspath(path)
    return Settings(tree=tree, origins=settings.origins)


def find(run: str, runs_dir: str = "./runs") -> RunFolder:
    """The run that `run` means: a path or URL, `latest`, or the beginning of a name in `runs_dir`."""
    if "://" in run or Path(run, "run.json").exists():
        return RunFolder.open(run if "://" in run else str(Path(run).absolute()))
    names = sorted(_names(runs_dir), key=lambda name: _created_at(runs_dir, name))
    found = names[-1:] if run == "latest" else [name for name in names if name.startswith(run)]
    found = [run] if run in found else found
    if len(found) == 1:
        return RunFolder.open(str(Path(runs_dir, found[0]).absolute()))
    if not found:
        known = f"it holds: {', '.join(names)}" if names else "it holds no run"
        raise RunNotFound(f'no run "{run}": neither a run folder nor the beginning of a name in {runs_dir} ({known})')
    raise RunNotFound(f'"{run}" begins {len(found)} names in {runs_dir}: {", ".join(found)}; write more of it')


def connect(run: str | Path, runs_dir: str = "./runs") -> DuckDBPyConnection:
    """A read-only connection to a run's database, also while the run goes on.

    `run`: a database file, or what `find` understands. Close it soon: an open reader keeps the recorder waiting. Raises
    `RunNotFound`, or `DatabaseError` where nothing is recorded yet.
    """
    from agrpo.database.queries import connect as connect_to

    return connect_to(Path(run) if Path(run).is_file() else find(str(run), runs_dir).database)


def _created_at(runs_dir: str, name: str) -> str:
    return json.loads(Path(runs_dir, name, "run.json").read_text()).get("created_at", "")


def summaries(runs_dir: str = "./runs") -> list[RunSummary]:
    """The runs of a folder, oldest first."""
    folders = [RunFolder.open(str(Path(runs_dir, name).absolute())) for name in _names(runs_dir)]
    return sorted((_summary(folder) for folder in folders), key=lambda summary: summary.created_at)


def _names(runs_dir: str) -> list[str]:
    if "://" in runs_dir:
        raise ConfigError(f"{runs_dir}: runs are looked up by name in local folders only; give the run's own URL")
    folder = Path(runs_dir)
    return [entry.name for entry in folder.iterdir() if (entry / "run.json").exists()] if folder.is_dir() else []


def _summary(folder: RunFolder) -> RunSummary:
    document = folder.document()
    done, hint = newest_done(folder), folder.hint()
    return RunSummary(
        name=document["name"],
        url=folder.url,
        created_at=datetime.fromisoformat(document["created_at"]),
        state=_state(folder, hint),
        steps=done.step if done else 0,
        max_steps=document["settings"]["tree"]["stop"]["max_steps"],
        reward=done.metrics.get("reward") if done else None,
    )


def _state(folder: RunFolder, hint: Hint | None) -> str:
    if hint is not None and hint.finished:
        return "finished"
    if any(beat["at"] > time.time() - LIVING_SECONDS for beat in folder.beats()):
        return "running"
    return "unfinished" if folder.attempts() else "not started"


def _document(config: RunConfig, name: str, now: datetime) -> dict[str, Any]:
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
        "prompts_per_epoch": len(config.prompts.source()),
        "prompts_digest": _prompts_digest(config),
        "threads": max(1, _cores() // 2),
        "host": platform.node(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in ("torch", "transformers", "prefect", "duckdb", "pyarrow")},
    }


def check_unchanged(folder: RunFolder) -> None:
    """Refuse to go on with a run whose model files or prompts are others than it began with. Raises `ConfigError`."""
    document = folder.document()
    if "model_digests" not in document:
        return
    config = RunConfig.build(load_settings(document))
    found = {**_model_digests(config), "prompts": _prompts_digest(config)}
    began = {**document["model_digests"], "prompts": document["prompts_digest"]}
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


def _model_digests(config: RunConfig) -> dict[str, str]:
    """Of the files that decide what a token means; weights are digested when they are published."""
    folder = Path(config.model.path)
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    return {name: _digest((folder / name).read_bytes()) for name in names if (folder / name).is_file()}


def _check_model(config: RunConfig) -> list[str]:
    path = config.model.path
    if os.path.isdir(path):
        files = {entry.name for entry in Path(path).iterdir()}
        missing = [name for name in ("config.json", "tokenizer_config.json") if name not in files]
        if not any(name.endswith(".safetensors") for name in files):
            missing.append("*.safetensors")
        return [f"model.path: {path} has no {', no '.join(missing)}; save model and tokenizer there"] if missing else []
    if path.startswith((".", "/", "~")):
        return [f"model.path: no folder {path}; give a folder written by save_pretrained, or a hub id"]
    return _check_hub_model(config)


def _check_hub_model(config: RunConfig) -> list[str]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        hf_hub_download(config.model.path, "config.json", revision=config.model.revision)
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        return [
            f'model.path: "{config.model.path}" is no folder, and no model of that id can be had from the hub: {reason}'
        ]
    return []


def _check_prompts(config: RunConfig) -> list[str]:
    try:
        rows = config.prompts.source()
        if len(rows) == 0:
            return ["prompts: the source has no rows; a run needs at least one prompt"]
        for index in range(min(len(rows), ROWS_CHECKED)):
            _check_row(rows, index)
    except AgrpoError as error:
        return [f"prompts: {error}"]
    return []


def _check_row(rows: Any, index: int) -> None:
    row: DatasetRow = rows[index]
    messages_of(row, index)
    if row.get("environment") is not None:
        raise PromptError(f'row {index} names the environment "{row["environment"]}"; environments are not offered yet')


def _check_place(config: RunConfig, place: str) -> list[str]:
    """Whether the run can be written, and fits."""
    if place.startswith("memory://"):
        return [f"run.dir: {place} is seen by one process only; a run needs a folder or an object store"]
    if "://" in place:
        return []
    standing = Path(place).absolute()
    while not standing.exists():
        standing = standing.parent
    if not standing.is_dir() or not os.access(standing, os.W_OK):
        return [f"run.dir: {standing} cannot be written; choose another folder with --set run.dir=…"]
    needed, free = _bytes_needed(config), shutil.disk_usage(standing).free
    if free < needed:
        return [
            f"run.dir: {standing} has {free / 2**20:.0f} MiB free; this run keeps up to {needed / 2**20:.0f} MiB of weights "
            "and checkpoints; free some, or choose another folder with --set run.dir=…"
        ]
    return []


def _bytes_needed(config: RunConfig) -> int:
    """Published versions, checkpoints with two moments per weight (one more while writing), and the export."""
    folder = Path(config.model.path)
    weights = sum(entry.stat().st_size for entry in folder.glob("*.safetensors")) if folder.is_dir() else 0
    return weights * (config.asynchronous.max_staleness + 3 + 3 * 3 + 1) + SPARE_BYTES
