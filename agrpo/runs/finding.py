"""Runs found again: by a short name, as a list, or as a connection to what one has recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.errors import ConfigError, RecordError, RecordTooNew, RunNotFound, StoreError
from agrpo.queue.history import newest_done
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LIVING_SECONDS = 10.0
"""A run of which a stage has spoken since is running."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One line of `agrpo runs`."""

    name: str
    url: str
    created_at: datetime
    state: str
    """`finished`, `running`, `unfinished`, `not started`, `damaged`, or `too new` for this agrpo."""
    steps: int | None
    """None where the run cannot be read."""
    max_steps: int | None
    reward: float | None
    """Mean reward of the last step."""
    trouble: str | None = None
    """Why it cannot be read."""


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
    """As `run.json` says, which was written then; where it cannot be read, by its file's time."""
    file = Path(runs_dir, name, "run.json")
    try:
        return RunFolder.open(str(file.parent.absolute())).run_json().get("created_at", "")
    except (RecordError, StoreError):
        return _written_at(file).isoformat()


def _written_at(file: Path) -> datetime:
    return datetime.fromtimestamp(file.stat().st_mtime, UTC)


def summaries(runs_dir: str = "./runs") -> list[RunSummary]:
    """The runs of a folder, oldest first."""
    found = [_summary_if_readable(Path(runs_dir, name).absolute()) for name in _names(runs_dir)]
    return sorted(found, key=lambda summary: summary.created_at)


def _names(runs_dir: str) -> list[str]:
    if "://" in runs_dir:
        raise ConfigError(f"{runs_dir}: runs are looked up by name in local folders only; give the run's own URL")
    folder = Path(runs_dir)
    return [entry.name for entry in folder.iterdir() if (entry / "run.json").exists()] if folder.is_dir() else []


def _summary_if_readable(place: Path) -> RunSummary:
    try:
        return _summary(RunFolder.open(str(place)))
    except (RecordError, StoreError) as error:
        return RunSummary(
            name=place.name,
            url=str(place),
            created_at=_written_at(place / "run.json"),
            state="too new" if isinstance(error, RecordTooNew) else "damaged",
            steps=None,
            max_steps=None,
            reward=None,
            trouble=str(error),
        )


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
    if folder.has_finished(hint):
        return "finished"
    if any(beat["at"] > time.time() - LIVING_SECONDS for beat in folder.beats()):
        return "running"
    return "unfinished" if folder.attempts() else "not started"
