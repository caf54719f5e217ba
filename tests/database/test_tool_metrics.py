"""Measures of tools and of forks: what the learner logs is what SQL says of the recorded calls and turns."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import DropReason
from agrpo.records.rollout import CallFailure, Rollout, StopReason, ToolCall
from agrpo.stages.recorder import record_once
from tests.database.synthetic import a_rollout, a_turn, add_attempt, add_done, add_group, add_plan, add_scores, new_run

CALLS = [
    ToolCall(turn_index=0, name="add", duration_seconds=0.25),
    ToolCall(turn_index=0, name="add", duration_seconds=0.75, failure=CallFailure.RAISED, reason="Error: no"),
    ToolCall(turn_index=1, name="oh", failure=CallFailure.UNKNOWN_NAME, reason="Error: no such tool"),
]


def conversation(index: int, second_prompt: list[int], calls: list[ToolCall], stop: StopReason) -> Rollout:
    turns = [a_turn([7, 8, 9], [5, 6]), a_turn(second_prompt, [3, 1])]
    rollout = replace(a_rollout(index, [5, 6, 3, 1]), turns=turns, tool_calls=calls, tool_call_count=len(calls))
    return replace(rollout, stop_reason=stop)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Three steps: the second one drops a group with calls, the third one has no call at all."""
    folder = new_run(tmp_path_factory.mktemp("tools") / "run", tools=["my:add"])
    add_attempt(folder, 0)
    extends, forks = [7, 8, 9, 5, 6, 40], [7, 8, 2]
    add_group(folder, 0, [conversation(0, extends, CALLS, StopReason.MAX_TURNS), a_rollout(1, [4, 1])])
    add_group(folder, 1, [conversation(0, forks, CALLS[:1], StopReason.STOP), a_rollout(1, [4, 1])])
    add_group(folder, 2, [conversation(i, extends, CALLS[:2], StopReason.STOP) for i in (0, 1)])
    add_group(folder, 3)
    for ticket in range(4):
        add_scores(folder, ticket)
    add_done(folder, add_plan(folder, StepKey(0, 1), [0]))
    add_done(folder, add_plan(folder, StepKey(0, 2), [1], {2: DropReason.STALE}))
    add_done(folder, add_plan(folder, StepKey(0, 3), [3]))
    record_once(folder, Database(folder.database))
    return folder


def measures(folder: RunFolder, view: str) -> dict[tuple[int, str], float]:
    rows = query(folder.database, f"SELECT step, name, value FROM {view}").to_pylist()
    chosen = ("tools/", "rollout/fork", "rollout/drift")
    return {(row["step"], row["name"]): row["value"] for row in rows if row["name"].startswith(chosen)}


@pytest.mark.spec("A-287", "A-288", "A-313", "A-314", "A-325", "A-326", "A-327", "A-328", "A-329")
def test_what_was_logged_is_what_sql_says(finished: RunFolder):
    logged, asked = measures(finished, "live_metrics"), measures(finished, "step_metrics")
    assert asked.keys() == logged.keys()
    assert asked == pytest.approx(logged, nan_ok=True)
    first = {name: value for (step, name), value in asked.items() if step == 1}
    assert first["tools/failure_frequency"] == pytest.approx(2 / 3)
    assert (first["tools/latency_s"], first["tools/add/failure_count"], first["tools/loop_exhausted_frac"]) == (
        0.5,
        1,
        0.5,
    )
    assert (asked[2, "tools/call_frequency"], asked[2, "rollout/fork_frac"]) == (5 / 4, 1 / 3)
    assert (asked[2, "rollout/drift_tokens_mean"], asked[2, "rollout/drift_tokens_max"]) == (1.0, 3.0)
    assert math.isnan(asked[3, "tools/failure_frequency"])
    assert (3, "rollout/fork_frac") not in asked


def test_a_window_is_over_all_of_its_calls(finished: RunFolder):
    found = query(finished.database, "SELECT name, value FROM window_metrics(3)").to_pylist()
    window = {row["name"]: row["value"] for row in found}
    assert window["tools/failure_frequency"] == pytest.approx(4 / 8)
    assert (window["tools/add/call_count"], window["tools/unknown_name_count"]) == (7, 1)
    assert window["rollout/fork_frac"] == 1 / 4


def test_a_run_without_tools_has_no_measure_of_them(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    add_group(folder, 0)
    add_scores(folder, 0)
    add_done(folder, add_plan(folder, StepKey(0, 1), [0]))
    record_once(folder, Database(folder.database))
    assert measures(folder, "step_metrics") == measures(folder, "live_metrics") == {}
