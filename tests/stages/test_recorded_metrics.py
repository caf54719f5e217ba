"""What the learner logged equals what SQL says of the recorded rows: one source, no second bookkeeping."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.runs import prepare
from tests.stages.walk import Walk, dones, settings

NOT_OF_ROWS = {"perf/step_s", "learning_rate", "loss", "grad_norm"}
"""Said of the step itself, not of its rollouts."""


@pytest.mark.spec("A-282", "A-283", "A-284", "A-285", "A-286", "A-291", "A-293", "A-295", "A-296", "A-297", "A-298")
@pytest.mark.spec("A-300", "A-302", "A-303", "A-304", "A-305", "A-306", "A-335", "A-336", "A-348", "K23")
def test_every_logged_measure_equals_sql_over_the_steps_rows(tiny_model: Path, tmp_path: Path):
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    tree = settings(
        tiny_model,
        prompts,
        tmp_path,
        asynchronous={"max_staleness": 2},
        engine={"max_completion_length": 3},
        optimizer={"learning_rate": 3e-2},
        recorder={"every_seconds": 0.2},
        stop={"max_steps": 5},
    )
    folder = prepare(resolve(values=tree))
    walk = Walk(folder).start("generator", "scorer", "learner", "recorder")
    walk.until(lambda: len(folder.done_steps(0)) == 5)
    for thread in walk.threads[:3]:
        thread.join(60)
    walk.stop.set()
    walk.join()
    logged = {(done.step, name): value for done in dones(folder) for name, value in done.metrics.items()}
    recorded = query(folder.database, "SELECT step, name, value FROM live_metrics").to_pylist()
    assert {(row["step"], row["name"]): row["value"] for row in recorded} == logged
    computed = query(folder.database, "SELECT step, name, value FROM step_metrics").to_pylist()
    found = {(row["step"], row["name"]): row["value"] for row in computed}
    assert {name for _, name in logged} - {name for _, name in found} == NOT_OF_ROWS
    for key, value in found.items():
        assert value == pytest.approx(logged[key], abs=1e-6), key
