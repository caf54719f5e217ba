"""What the learner logged equals what SQL says of the recorded rows: one source, no second bookkeeping."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.stages.walk import dones, settings, walk

TWO_REWARDS = [
    {"name": "tests.stages.judges:distinct_tokens", "weight": 0.7},
    {"name": "tests.stages.judges:sometimes_even", "weight": 0.3},
]


def recorded_run(model: Path, place: Path, num_prompts: int = 12, **tables: Any) -> RunFolder:
    """A run walked to its end, and all of it in its database."""
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(num_prompts)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    folder = prepare(resolve(values=settings(model, prompts, place, **tables) | {"rewards": TWO_REWARDS}))
    walk(folder)
    record_once(folder, Database(folder.database))
    return folder


def logged(folder: RunFolder) -> dict[tuple[int, str], float]:
    return {(done.step, name): value for done in dones(folder) for name, value in done.metrics.items()}


def asked(folder: RunFolder, view: str) -> dict[tuple[int, str], float]:
    rows = query(folder.database, f"SELECT step, name, value FROM {view}").to_pylist()
    return {(row["step"], row["name"]): row["value"] for row in rows}


def tolerance(name: str) -> float:
    """Times are stored in whole microseconds."""
    return 5e-6 if name == "sample/time_in_queue_s" else 1e-6


def assert_equal(found: dict[tuple[int, str], float], expected: dict[tuple[int, str], float]) -> None:
    assert found.keys() == expected.keys()
    for (step, name), value in found.items():
        assert value == pytest.approx(expected[step, name], abs=tolerance(name), rel=1e-9), (step, name)


def test_every_logged_measure_equals_sql_over_the_steps_rows(tiny_model: Path, tmp_path: Path):
    folder = recorded_run(
        tiny_model,
        tmp_path,
        asynchronous={"max_staleness": 2},
        engine={"max_completion_length": 3},
        optimizer={"learning_rate": 3e-2},
        stop={"max_steps": 5},
    )
    expected = logged(folder)
    assert asked(folder, "live_metrics") == expected
    assert_equal(asked(folder, "step_metrics"), expected)
