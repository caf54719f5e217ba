"""The facts of a report are what SQL over the run's rows says."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from agrpo.database.queries import connect, query
from agrpo.database.writer import Database
from agrpo.instruments.report.counts import EventKind, FailedReward, Fate, StalenessBar, Work
from agrpo.instruments.report.curves import PARTS, read_axis, read_drops, read_measures, read_reward_band
from agrpo.instruments.report.facts import RunFacts, read_facts
from agrpo.instruments.report.page import report_page
from agrpo.instruments.report.settings import Difference, GivenSetting, differences, given_settings
from agrpo.queue.run_folder import EventStream, RunFolder, StepKey
from agrpo.records.progress import Attempt, Base, DropReason
from agrpo.records.timings import StepTimings
from agrpo.stages.recorder import record_once
from tests.database.synthetic import (
    T0,
    a_rollout,
    add_attempt,
    add_done,
    add_group,
    add_plan,
    add_scores,
    new_run,
    small_run,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Two steps: the first trains group 0, the second group 1 and drops group 2 as stale; group 3 waits."""
    folder = small_run(tmp_path_factory.mktemp("report") / "run")
    EventStream(folder, "learner-b").write("finished", attempt=0, step=2)
    record_once(folder, Database(folder.database))
    return folder


@pytest.fixture(scope="module")
def facts(run: RunFolder) -> RunFacts:
    return read_facts(run)


def test_the_summary_counts_what_the_rows_hold(facts: RunFacts):
    summary = facts.summary
    assert (summary.name, summary.finished, summary.steps, summary.num_attempts) == ("small", True, 2, 1)
    assert (summary.num_groups, summary.num_rollouts) == (4, 8)
    assert (summary.generated_tokens, summary.forwarded_tokens, summary.trained_tokens) == (4 * 5, 2 * 11, 2 * 5)
    assert summary.step_seconds == 2 * 4.0
    assert summary.tokens_per_second == 22 / 8
    assert summary.ended_at == T0 + 25
    assert (summary.reward.first, summary.reward.last, summary.reward.best, summary.reward.best_step) == (
        0.5,
        0.5,
        0.5,
        1,
    )


def test_points_carry_step_tokens_and_minutes(facts: RunFacts):
    assert facts.window_steps == 1
    assert [(window.step, window.num_tokens) for window in facts.windows] == [(1, 11), (2, 22)]
    assert [window.minutes for window in facts.windows] == pytest.approx([15 / 60, 25 / 60])


def test_every_measure_is_a_curve_with_the_values_of_its_steps(run: RunFolder, facts: RunFacts):
    rows = query(run, "SELECT name, list(value ORDER BY step) AS points FROM step_metrics GROUP BY name").to_pylist()
    assert len(rows) > 20
    for row in rows:
        present = [value for value in facts.measure(row["name"]) if value is not None]
        assert present == pytest.approx(row["points"]), row["name"]
    assert facts.measure("no/such_measure") == (None, None)


def test_the_parts_of_a_step_are_those_of_the_database_and_add_up_to_it(tmp_path: Path):
    parts = {part: 2.0**place for place, part in enumerate(PARTS)}
    timings = StepTimings(
        step_seconds=2.0**11 - 1,
        sync_transfer_seconds=1.0,
        num_syncs=1,
        **{f"{part}_seconds": parts[part] for part in parts},
    )
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for step in (1, 2):
        add_done(folder, add_plan(folder, StepKey(0, step), []), timings=timings)
    record_once(folder, Database(folder.database))
    facts = read_facts(folder)
    told = query(folder, "SELECT DISTINCT part FROM step_times").to_pylist()
    assert {row["part"] for row in told} == parts.keys()
    assert facts.step_parts == {part: (seconds, seconds) for part, seconds in parts.items()}
    assert facts.part_totals == {part: 2 * seconds for part, seconds in parts.items()}
    assert sum(facts.part_totals.values()) == facts.summary.step_seconds == 2 * (2**11 - 1)


def test_the_time_of_all_steps_has_no_pause_between_attempts(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    add_done(folder, add_plan(folder, StepKey(0, 1), []))
    add_attempt(folder, 1, parent=0, base_step=1)
    late = add_done(folder, add_plan(folder, StepKey(1, 361), []))
    record_once(folder, Database(folder.database))
    summary = read_facts(folder).summary
    assert late.finished_at == summary.ended_at == T0 + 3615
    assert (summary.steps, summary.step_seconds) == (2, 8.0)


def test_dropped_groups_are_counted_per_step_in_a_short_last_window_too(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for step in (1, 2, 3):
        for ticket in (2 * step, 2 * step + 1):
            add_group(folder, ticket)
            add_scores(folder, ticket)
        drops = {2 * step: DropReason.STALE, 2 * step + 1: DropReason.STALE}
        add_done(folder, add_plan(folder, StepKey(0, step), [], drops))
    record_once(folder, Database(folder.database))
    with connect(folder) as connection:
        axis = read_axis(connection, most_points=2)
        assert [window.num_steps for window in axis.windows] == [2, 1]
        assert read_drops(connection, axis) == {"stale": (2.0, 2.0)}


def test_attempts_are_told_by_what_their_base_says(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    folder.write_attempt(Attempt(attempt=1, host="h", pid=1, started_at=T0 + 1))
    folder.write_base(Base(attempt=1, void=True))
    folder.write_attempt(Attempt(attempt=2, host="h", pid=1, started_at=T0 + 2))
    folder.write_base(Base(attempt=2, parent=0, base_step=7, adopted_through=7))
    folder.write_attempt(Attempt(attempt=3, host="h", pid=1, started_at=T0 + 3))
    record_once(folder, Database(folder.database))
    assert [event.detail for event in read_facts(folder).events] == [
        "begins the run (h)",
        "ended before it began a step; it left nothing that counts (h)",
        "continues attempt 0 after step 7 (h)",
        "has not begun a step yet: it loads the model, and replays what was done (h)",
    ]


def test_a_reward_that_is_no_number_is_left_out_of_every_mean(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for ticket, rewards in enumerate([[1.0, 0.5], [0.5, 0.5]]):
        add_group(folder, ticket)
        add_scores(folder, ticket, {"correct": rewards})
        add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket]))
    record_once(folder, Database(folder.database))
    with duckdb.connect(str(folder.database)) as connection:
        connection.execute("UPDATE scores SET reward = 'inf' WHERE ticket = 0 AND rollout_index = 0")
    facts = read_facts(folder)
    assert (facts.summary.reward.best, facts.summary.reward.num_steps) == (0.5, 1)
    assert [(fate.status, fate.reward) for fate in facts.fates] == [("trained", 0.5)]
    assert [(bar.num_samples, bar.reward) for bar in facts.staleness] == [(4, 0.5)]
    assert [(story.prompt_id, story.reward) for story in facts.stories.best] == [("p1", 0.5), ("p0", 0.5)]
    assert facts.reward_band.high == (0.5, 0.5)
    assert "reward <strong>∞</strong>" in report_page([facts])


def test_a_failed_reward_is_told_with_its_commonest_error_and_no_failed_rollout(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for ticket in range(3):
        add_group(folder, ticket)
        add_scores(folder, ticket, {"correct": [1.0, 0.0], "judge": [None, 0.5 if ticket == 2 else None]})
    record_once(folder, Database(folder.database))
    with duckdb.connect(str(folder.database)) as connection:
        connection.execute(
            "UPDATE rewards SET error = 'late' WHERE name = 'judge' AND ticket = 0 AND rollout_index = 0"
        )
        connection.execute("UPDATE rollouts SET num_prompt_tokens = 0 WHERE ticket = 1 AND rollout_index = 0")
    facts = read_facts(folder)
    assert facts.failed_rewards == (
        FailedReward(name="judge", num_failed=4, num_asked=5, error="no value", num_errors=3),
    )
    assert facts.work == Work(rollout_seconds=0.25, score_wait_seconds=1.5, score_seconds=0.125)


def test_bands_are_quantiles_over_the_groups_and_completions_of_each_step(facts: RunFacts):
    assert facts.reward_band.middle == (0.5, 0.5)
    assert facts.length_band.low == pytest.approx((2.1, 2.0))
    assert facts.length_band.middle == (2.5, 2.5)
    assert facts.length_band.high == pytest.approx((2.9, 3.0))
    assert facts.length_band.mean == (2.5, 2.5)


def test_drops_fates_and_staleness_add_up_to_the_groups_and_samples(facts: RunFacts):
    assert facts.drops == {"stale": (0.0, 1.0)}
    assert facts.fates == (
        Fate(status="trained", reason=None, num_groups=2, num_rollouts=4, reward=0.5),
        Fate(status="dropped", reason="stale", num_groups=1, num_rollouts=2, reward=0.5),
        Fate(status="pending", reason="scored", num_groups=1, num_rollouts=2, reward=0.5),
    )
    assert facts.staleness == (
        StalenessBar(first=0, last=0, num_samples=2, reward=0.5),
        StalenessBar(first=1, last=1, num_samples=2, reward=0.5),
    )


def test_events_are_told_in_words_after_the_start_of_their_learner(facts: RunFacts):
    assert (facts.events[0].told_at, facts.events[0].kind, facts.events[0].detail) == (
        T0,
        "attempt",
        "begins the run (h)",
    )
    assert [(event.stage, event.kind, event.detail) for event in facts.events if event.kind == "finished"] == [
        ("learner", "finished", "step 2")
    ]
    assert [(kind.kind, kind.num_events) for kind in facts.event_kinds] == [("finished", 1), ("odd", 1), ("started", 1)]
    assert isinstance(facts.event_kinds[0], EventKind)


def test_a_long_run_is_drawn_in_windows_of_steps(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    total = 0
    for ticket, rewards in enumerate([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]):
        add_group(folder, ticket)
        add_scores(folder, ticket, {"correct": rewards})
        total = add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket]), total).num_tokens
    record_once(folder, Database(folder.database))
    with connect(folder) as connection:
        axis = read_axis(connection, most_points=2)
        measures = read_measures(connection, axis)
        band = read_reward_band(connection, axis)
        assert read_drops(connection, axis) == {}
    assert (axis.window_steps, [window.step for window in axis.windows]) == (2, [2, 3])
    assert measures["reward"] == (0.75, 0.0)
    assert measures["num_tokens"] == (22.0, 33.0)
    assert measures["sample/dropped_stale_count"] == (0.0, 0.0)
    assert measures["completions/max_length"] == (3.0, 3.0)
    assert (band.low, band.middle, band.high) == (pytest.approx((0.55, 0.0)), (0.75, 0.0), pytest.approx((0.95, 0.0)))


def test_prompts_are_ranked_by_what_their_rollouts_earned(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for ticket, rewards in enumerate([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.5, 0.0]]):
        long = "x" * 2000 if ticket == 0 else "short"
        rollouts = [a_rollout(0, [5, 1]), a_rollout(1, [6, 1])]
        rollouts[0].completion[0]["content"] = long
        add_group(folder, ticket, rollouts)
        add_scores(folder, ticket, {"correct": rewards})
        add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket]))
    record_once(folder, Database(folder.database))
    stories = read_facts(folder).stories
    assert [(story.prompt_id, story.reward) for story in stories.best] == [("p0", 1.0), ("p2", 0.5), ("p3", 0.25)]
    assert [(story.prompt_id, story.reward) for story in stories.worst] == [("p1", 0.0)]
    assert (stories.improved, stories.num_returned) == ((), 0)
    first = stories.best[0].rollouts[0]
    assert (len(first.text or ""), first.characters_cut, first.reward, first.step) == (1500, 500, 1.0, 1)
    assert stories.best[0].prompt == "user: 1+1?"


def test_the_most_improved_prompt_came_in_both_halves_of_the_run(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for ticket, rewards in enumerate([[0.0, 0.5], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]):
        add_group(folder, ticket)
        add_scores(folder, ticket, {"correct": rewards})
        add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket]))
    record_once(folder, Database(folder.database))
    with duckdb.connect(str(folder.database)) as connection:
        connection.execute("UPDATE groups SET prompt_id = 'p' || (ticket % 2)")
    stories = read_facts(folder).stories
    assert stories.num_returned == 2
    (improved,) = stories.improved
    assert (improved.prompt_id, improved.early_reward, improved.late_reward) == ("p0", 0.25, 1.0)
    assert [(rollout.ticket, rollout.rollout_index) for rollout in improved.rollouts] == [
        (0, 0),
        (0, 1),
        (2, 0),
        (2, 1),
    ]


def test_settings_that_were_given_are_told_with_their_origin():
    tree = {"step": {"groups": 2}, "optimizer": {"learning_rate": 1e-3, "betas": [0.9, 0.99]}}
    document = {
        "settings": {"tree": tree, "origins": {"step.groups": "--set", "optimizer.betas": "recipes/small/run.toml"}}
    }
    assert given_settings(document) == (
        GivenSetting(key="optimizer.betas", value="[0.9, 0.99]", origin="run.toml"),
        GivenSetting(key="step.groups", value="2", origin="--set"),
    )


def test_runs_differ_in_settings_rewards_and_packages_but_not_in_their_names():
    def document(name: str, weight: float, torch: str) -> dict[str, object]:
        tree = {"run": {"name": name}, "step": {"groups": 2}, "rewards": [{"name": "r", "weight": weight}]}
        return {"settings": {"tree": tree, "origins": {}}, "packages": {"torch": torch}}

    assert differences([document("a", 1.0, "2.9"), document("b", 0.5, "2.13")]) == (
        Difference(key="package torch", values=("2.9", "2.13")),
        Difference(key="rewards.0.weight", values=("1.0", "0.5")),
    )
