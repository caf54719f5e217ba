"""The views against the Python that means the same: lineage, logged measures, and the reported cases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from uuid import uuid4

import duckdb
import pytest

from agrpo.database.queries import connect
from agrpo.database.schema import create_all
from agrpo.database.writer import Database
from agrpo.queue.lineage import Segment, lineage
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Base, DropReason
from agrpo.records.rollout import Rollout, StopReason
from agrpo.stages.recorder import record_once
from tests.database.synthetic import (
    a_rollout,
    add_attempt,
    add_done,
    add_group,
    add_plan,
    add_scores,
    add_step,
    new_run,
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> RunFolder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return new_run(f"memory://{uuid4().hex}")


def lineage_in_sql(bases: Iterable[Base], connection: duckdb.DuckDBPyConnection) -> list[Segment]:
    connection.execute("DELETE FROM bases")
    for b in bases:
        connection.execute(
            "INSERT INTO bases (attempt, parent, base_step, adopted_through, void) VALUES (?, ?, ?, ?, ?)",
            [b.attempt, b.parent, b.base_step, b.adopted_through, b.void],
        )
    found = connection.execute("SELECT attempt, first_step, last_step FROM lineage ORDER BY first_step").fetchall()
    return [Segment(attempt=attempt, first=first, last=last) for attempt, first, last in found]


@pytest.fixture
def empty() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    create_all(connection)
    return connection


def rows(folder: RunFolder, sql: str) -> list[tuple]:
    """What a query gives once everything is recorded."""
    record_once(folder, Database(folder.database))
    with connect(folder) as connection:
        return connection.execute(sql).fetchall()


Shape = Mapping[int, tuple[int | None, int]]
"""Parent and base step by attempt; -1 for a void attempt's parent."""

SHAPES: dict[str, Shape] = {
    "nothing": {},
    "one": {0: (None, 0)},
    "crash resumed": {0: (None, 0), 1: (0, 5)},
    "rolled back past a resume": {0: (None, 0), 1: (0, 8), 2: (1, 9), 3: (0, 5)},
    "rolled back twice": {0: (None, 0), 1: (0, 8), 2: (1, 3), 3: (2, 2)},
    "an attempt between contributes nothing": {0: (None, 0), 1: (0, 5), 2: (1, 5), 3: (2, 7)},
    "void in the middle": {0: (None, 0), 1: (-1, 0), 2: (0, 4)},
    "void at the end": {0: (None, 0), 1: (0, 3), 2: (-1, 0)},
    "only void": {0: (-1, 0), 1: (-1, 0)},
    "begun again": {0: (-1, 0), 1: (None, 0), 2: (1, 6), 3: (-1, 0), 4: (2, 6)},
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_view_lineage_is_the_function_lineage(empty, name):
    bases = {
        attempt: Base(attempt=attempt, parent=None if parent == -1 else parent, base_step=base_step, void=parent == -1)
        for attempt, (parent, base_step) in SHAPES[name].items()
    }
    assert lineage_in_sql(bases.values(), empty) == lineage(bases)


def test_the_lineages_agree_on_every_history_of_four_attempts(empty):
    histories = [{0: Base(attempt=0)}]
    for attempt in (1, 2, 3):
        histories = [
            history | {attempt: Base(attempt=attempt, parent=parent, base_step=step, void=step == 0)}
            for history in histories
            for parent in [number for number, base in history.items() if not base.void]
            for step in (0, 2, 5)
        ]
    assert len(histories) == 111
    assert [bases for bases in histories if lineage_in_sql(bases.values(), empty) != lineage(bases)] == []


def test_four_attempts_with_a_rollback_leave_the_steps_that_count(folder):
    for attempt, (parent, base_step) in SHAPES["rolled back past a resume"].items():
        add_attempt(folder, attempt, parent, base_step)
    written = {0: range(1, 11), 1: range(9, 13), 2: range(10, 12), 3: range(6, 9)}
    for attempt, steps in written.items():
        for step in steps:
            add_step(folder, attempt, step, [])
    live = [(0, step) for step in range(1, 6)] + [(3, step) for step in range(6, 9)]
    assert lineage(folder.bases()) == [Segment(attempt=0, first=1, last=5), Segment(attempt=3, first=6, last=None)]
    assert rows(folder, "SELECT attempt, step FROM live_steps ORDER BY step") == live
    assert rows(folder, "SELECT attempt, step FROM live_plans ORDER BY step") == live
    assert rows(folder, "SELECT DISTINCT attempt, step FROM live_metrics ORDER BY step") == live
    assert rows(folder, "SELECT count(*) FROM steps") == [(10 + 4 + 2 + 3,)]


def test_a_half_done_step_counts_under_the_attempt_that_adopted_it(folder):
    add_attempt(folder, 0)
    for ticket in (0, 1):
        add_group(folder, ticket)
        add_scores(folder, ticket)
    add_plan(folder, StepKey(0, 1), [0], {1: DropReason.STALE})
    assert rows(folder, "SELECT ticket, status, attempt FROM group_status ORDER BY 1") == [
        (0, "trained", 0),
        (1, "dropped", 0),
    ]
    add_plan(folder, StepKey(1, 1), [0], {1: DropReason.STALE})
    add_attempt(folder, 1, 0, 0)
    assert rows(folder, "SELECT ticket, status, attempt FROM group_status ORDER BY 1") == [
        (0, "trained", 1),
        (1, "dropped", 1),
    ]
    assert rows(folder, "FROM live_steps") == []


def test_groups_of_steps_that_no_longer_count_are_pending_again(folder):
    add_attempt(folder, 0)
    for ticket in range(4):
        add_group(folder, ticket)
    add_scores(folder, 0)
    add_scores(folder, 1)
    folder.claims.take(4, owner="generator-a", base=0)
    add_step(folder, 0, 1, [0])
    add_step(folder, 0, 2, [1])
    add_attempt(folder, 1, 0, 1)
    assert rows(folder, "SELECT ticket, status, reason, attempt, step FROM group_status ORDER BY 1") == [
        (0, "trained", None, 0, 1),
        (1, "pending", "scored", None, None),
        (2, "pending", "generated", None, None),
        (3, "pending", "generated", None, None),
        (4, "pending", "claimed", None, None),
    ]


def test_a_group_trained_in_two_steps_names_both(folder):
    add_attempt(folder, 0)
    add_group(folder, 0)
    add_scores(folder, 0)
    add_step(folder, 0, 1, [0])
    add_step(folder, 0, 2, [0])
    assert rows(folder, "SELECT ticket, status, step, steps FROM group_status") == [(0, "trained", 1, [1, 2])]
    assert rows(folder, "SELECT count(*) FROM rollouts_with_rewards") == [(2,)]


def six_groups(folder: RunFolder) -> None:
    """Three trained, one whose engine failed, one with equal rewards, one stale."""
    add_attempt(folder, 0)
    for ticket in (0, 1, 2, 4, 5):
        add_group(folder, ticket, version=0 if ticket == 5 else 3)
        add_scores(folder, ticket, {"correct": [1.0, 1.0] if ticket == 4 else [1.0, 0.0]})
    lost = [
        Rollout(completion=[], completion_ids=[], turns=[], index=i, stop_reason=StopReason.ENGINE_ERROR, error="gone")
        for i in (0, 1)
    ]
    add_group(folder, 3, lost, version=3)
    add_scores(folder, 3, {"correct": [None, None]})
    drops = {3: DropReason.FAILED, 4: DropReason.EQUAL_REWARDS, 5: DropReason.STALE}
    add_done(folder, add_plan(folder, StepKey(0, 1), [0, 1, 2], drops, version=5))


@pytest.mark.spec("K40")
def test_one_query_tells_what_became_of_six_groups(folder):
    six_groups(folder)
    assert rows(folder, "SELECT status, reason, count(*) FROM group_status GROUP BY ALL ORDER BY 3 DESC, 2") == [
        ("trained", None, 3),
        ("dropped", "equal_rewards", 1),
        ("dropped", "failed", 1),
        ("dropped", "stale", 1),
    ]


@pytest.mark.spec("K40")
def test_every_rollout_has_its_whole_story(folder):
    six_groups(folder)
    sql = """
        SELECT r.ticket, rollout_index, groups.prompt_id IS NOT NULL AND len(groups.prompt::VARCHAR) > 0,
            completion_ids, output_log_probs, list(rewards.value), r.model_version, r.attempt, r.step, r.staleness,
            r.reason, r.error, groups.finished_at > groups.claimed_at
        FROM rollouts_with_rewards AS r JOIN groups USING (ticket) LEFT JOIN rewards USING (ticket, rollout_index)
        LEFT JOIN turns USING (ticket, rollout_index)
        WHERE rollout_index = 0 AND ticket >= 2 GROUP BY ALL ORDER BY ticket
    """
    assert rows(folder, sql) == [
        (2, 0, True, [5, 6, 1], [-0.5] * 3, [1.0], 3, 0, 1, 5, None, None, True),
        (3, 0, True, [], None, [None], None, 0, 1, 2, "failed", "gone", True),
        (4, 0, True, [5, 6, 1], [-0.5] * 3, [1.0], 3, 0, 1, 2, "equal_rewards", None, True),
        (5, 0, True, [5, 6, 1], [-0.5] * 3, [1.0], 0, 0, 1, 5, "stale", None, True),
    ]


def test_a_rollout_is_joined_with_its_reward_its_group_and_its_advantage(folder):
    six_groups(folder)
    sql = """
        SELECT reward, group_reward_mean, group_reward_std, advantage, duplicate, status
        FROM rollouts_with_rewards WHERE ticket IN (0, 4) ORDER BY ticket, rollout_index
    """
    assert rows(folder, sql) == [
        (1.0, 0.5, pytest.approx(math.sqrt(0.5)), 1.0, False, "trained"),
        (0.0, 0.5, pytest.approx(math.sqrt(0.5)), -1.0, False, "trained"),
        (1.0, 1.0, 0.0, None, False, "dropped"),
        (1.0, 1.0, 0.0, None, False, "dropped"),
    ]


def measures(folder: RunFolder, step: int = 1) -> dict[str, float]:
    return dict(rows(folder, f"SELECT name, value FROM step_metrics WHERE step = {step}"))


@pytest.mark.spec("K23", "A-283", "A-284", "A-291")
def test_weighted_rewards_and_cut_completions_are_measured_as_trained(folder):
    add_attempt(folder, 0)
    finished, cut = a_rollout(0, [5, 6, 7, 1]), a_rollout(1, [5, 6, 7, 8, 9, 4], stop=StopReason.LENGTH)
    add_group(folder, 0, [finished, cut])
    add_scores(folder, 0, {"one": [1.0, 1.0], "zero": [0.0, 0.0]}, {"one": 0.7, "zero": 0.3})
    add_done(folder, add_plan(folder, StepKey(0, 1), [0]))
    for found in (measures(folder), dict(rows(folder, "SELECT name, value FROM live_metrics"))):
        assert found["reward"] == pytest.approx(0.7)
        assert (found["rewards/one/mean"], found["rewards/zero/mean"]) == (1.0, 0.0)
        assert found["completions/mean_length"] == 5
        assert (found["completions/min_length"], found["completions/max_length"]) == (4, 6)
        assert found["completions/mean_terminated_length"] == 4
        assert found["completions/clipped_ratio"] == 0.5


def test_every_measure_that_was_logged_is_what_the_rows_say(folder):
    six_groups(folder)
    for ticket, filtered in ((8, True), (9, False)):
        add_group(folder, ticket, [], refusal="not asked", filtered=filtered)
        add_scores(folder, ticket)
    for ticket in (6, 7):
        add_group(folder, ticket, version=5)
        add_scores(folder, ticket, {"correct": [1.0, None]} if ticket == 7 else {"correct": [0.25, 0.5]})
    first = 3 * (6 + 5)
    unasked = {8: DropReason.FILTERED, 9: DropReason.REFUSED_PROMPT}
    drops = {7: DropReason.TOO_FEW_SCORES, **unasked}
    add_done(folder, add_plan(folder, StepKey(0, 2), [6], drops, version=6), first)
    for step in (1, 2):
        logged = dict(rows(folder, f"SELECT name, value FROM live_metrics WHERE step = {step}"))
        assert measures(folder, step) == pytest.approx(logged)
        assert logged["rollout/unasked_count"] == (2.0 if step == 2 else 0.0)


def test_a_step_without_a_trained_token_has_counts_and_no_means(folder):
    add_attempt(folder, 0)
    add_group(folder, 0)
    add_scores(folder, 0, {"correct": [1.0, 1.0]})
    add_done(folder, add_plan(folder, StepKey(0, 1), [], {0: DropReason.EQUAL_REWARDS}))
    found = measures(folder)
    assert (found["num_tokens"], found["batch/samples_per_step"], found["frac_zero_std_groups"]) == (0, 0, 1)
    assert not {"entropy", "reward_trained", "sample/staleness_mean", "clip_ratio/low_mean"} & found.keys()
