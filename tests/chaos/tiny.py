"""A tiny run to be killed: two layers, four groups of two a step, a fraction of a second a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agrpo.config import resolve
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from tests.stages.walk import settings

MODES: dict[str, dict[str, Any]] = {
    "lockstep": {"asynchronous": {"max_staleness": 0}, "engine": {"reproducible": True}},
    "asynchronous": {"asynchronous": {"max_staleness": 2}},
}
"""What is promised of each is said in docs/durability.md."""

TABLES: dict[str, dict[str, Any]] = {
    "checkpoint": {"every_seconds": 5.0},
    "engine": {"num_generations": 2},
    "step": {"groups": 4},
    "recorder": {"every_seconds": 0.5},
    "supervision": {"restarts": 100_000, "first_pause_seconds": 0.0},
    "workers": {"generators": 2, "scorers": 2, "lease_seconds": 20.0},
}
"""Checkpoints some steps apart, so that a crash replays some; small groups, so that there are enough to archive; restarts
without end, and at once."""


def prompts_file(folder: Path) -> Path:
    """Twelve sums."""
    file = folder / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def begin(
    model: Path, place: Path, mode: str, *, steps: int, url: str | None = None, unhurried: bool = False, **tables: Any
) -> RunFolder:
    """A run at `url`, or in a folder of `place`, of which nothing has started.

    `unhurried`: its rewards take their time and are the same, so that it is not over before a killed process is back.
    """
    place.mkdir(parents=True, exist_ok=True)
    laid = {name: {**TABLES.get(name, {}), **tables.get(name, {})} for name in {*TABLES, *tables}}
    for name, values in MODES[mode].items():
        laid[name] = {**laid.get(name, {}), **values}
    laid["stop"] = {"max_steps": steps, "stall_seconds": 120, **laid.get("stop", {})}
    tree = settings(model, prompts_file(place), place, "unhurried" if unhurried else "distinct_tokens", **laid)
    return prepare(resolve(values=tree), folder=url or str(place / "run"))
