"""What rewards noted, as SQL has it: a row for each value, and measures of steps that equal what the learner logged."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.metrics.names import measure_named
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import DropReason
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_attempt, add_done, add_group, add_plan, add_scores, new_run

TWO = {"judge": [1.0, 0.0], "other": [0.5, 0.5]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Step 1 trains group 0 and drops group 1; step 2 trains group 2, of which nothing was noted; 3 waits."""
    folder = new_run(tmp_path_factory.mktemp("notes") / "run")
    add_attempt(folder, 0)
    for ticket in range(4):
        add_group(folder, ticket)
    add_scores(
        folder,
        0,
        TWO,
        extras={"judge": {"answer": ['say "4"', None], "right": [True, False]}, "other": {"answer": [4, 2.5]}},
        metrics={
            "judge": {"confidence": 0.5, "tests/failed_count": 3.0, "score_max": 9.0},
            "other": {"confidence": 1.0},
        },
    )
    metrics = {"confidence": 0.0, "tests/failed_count": 4.0, "score_max": 5.0, "score_min": -1.0, "min_max_count": 1.0}
    add_scores(folder, 1, {"judge": [1.0, 0.0]}, metrics={"judge": metrics})
    add_scores(folder, 2, TWO)
    add_scores(folder, 3, TWO, metrics={"judge": {"confidence": 99.0}})
    add_done(folder, add_plan(folder, StepKey(0, 1), [0], {1: DropReason.STALE}))
    add_done(folder, add_plan(folder, StepKey(0, 2), [2]))
    record_once(folder, Database(folder.database))
    return folder


def measures(folder: RunFolder, view: str) -> dict[tuple[int, str], float]:
    rows = query(folder.database, f"SELECT step, name, value FROM {view}").to_pylist()
    return {(row["step"], row["name"]): row["value"] for row in rows}


@pytest.mark.spec("G-185")
def test_a_noted_column_has_a_row_per_rollout(finished: RunFolder):
    columns = "rollout_index, reward, name, value, number"
    rows = query(finished.database, f"SELECT {columns} FROM reward_extras ORDER BY ALL").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, "judge", "answer", 'say "4"', None),
        (0, "judge", "right", "true", 1.0),
        (0, "other", "answer", "4", 4.0),
        (1, "judge", "answer", None, None),
        (1, "judge", "right", "false", 0.0),
        (1, "other", "answer", "2.5", 2.5),
    ]


@pytest.mark.spec("G-186")
def test_noted_metrics_stand_beside_the_measures_of_the_step_that_consumed_the_groups(finished: RunFolder):
    asked = measures(finished, "step_metrics")
    logged = measures(finished, "live_metrics")
    assert asked.keys() == logged.keys()
    assert {key: asked[key] for key in asked if measure_named(key[1]) is None} == pytest.approx(
        {key: logged[key] for key in logged if measure_named(key[1]) is None}
    )
    found = {name: value for (step, name), value in asked.items() if step == 1}
    assert found["confidence"] == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert (found["tests/failed_count"], found["score_max"], found["score_min"]) == (7.0, 9.0, -1.0)
    assert found["min_max_count"] == 1.0
    assert (1, "rewards/judge/mean") in asked and (2, "confidence") not in asked


def test_a_window_adds_noted_metrics_up_by_their_names(finished: RunFolder):
    rows = query(finished.database, "SELECT name, value FROM window_metrics(2)").to_pylist()
    window = {row["name"]: row["value"] for row in rows}
    assert window["confidence"] == pytest.approx(0.5)
    assert (window["tests/failed_count"], window["score_max"]) == (7.0, 9.0)


def test_a_run_in_which_nothing_is_noted_has_empty_tables(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    add_group(folder, 0)
    add_scores(folder, 0)
    record_once(folder, Database(folder.database))
    counts = "SELECT (SELECT count(*) FROM reward_extras) + (SELECT count(*) FROM reward_metrics) AS rows"
    assert query(folder.database, counts).to_pylist() == [{"rows": 0}]
