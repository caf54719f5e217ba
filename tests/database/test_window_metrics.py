"""Windows of steps add up exactly: rules of A-274 to A-279, worked by hand on a small run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.errors import DatabaseError
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.pace import Pace
from agrpo.records.progress import DropReason
from agrpo.records.rollout import StopReason
from agrpo.stages.recorder import record_once
from tests.database.synthetic import (
    TIMINGS,
    a_rollout,
    add_attempt,
    add_done,
    add_group,
    add_plan,
    add_scores,
    add_step,
    new_run,
)

TRAINED_LENGTHS = {0: (3, 2), 1: (1, 1, 1, 5), 2: (3, 2), 4: (3, 2)}
STALE_LENGTHS = {3: (4, 8)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Three steps of 4, 12 and 4 seconds: groups 0, then half of 1 and all of 2 with 3 dropped, then 4.

    Odd tickets had to wait.
    """
    folder = new_run(tmp_path_factory.mktemp("windows") / "run")
    add_attempt(folder, 0)
    for ticket, lengths in sorted({**TRAINED_LENGTHS, **STALE_LENGTHS}.items()):
        stops = [StopReason.LENGTH if length == 5 else StopReason.STOP for length in lengths]
        outputs = [[9] * length for length in lengths]
        add_group(folder, ticket, [a_rollout(i, outputs[i], stop=stops[i]) for i in range(len(lengths))])
        add_scores(folder, ticket, {"correct": [1.0] + [0.0] * (len(lengths) - 1)})
    add_done(folder, add_plan(folder, StepKey(0, 1), [0]))
    slow = replace(TIMINGS, step_seconds=12.0, sync_seconds=4.5, num_syncs=2)
    add_done(
        folder, add_plan(folder, StepKey(0, 2), [1, 2], {3: DropReason.STALE}, version=1, halved={1}), 11, timings=slow
    )
    add_done(folder, add_plan(folder, StepKey(0, 3), [4], version=2), 28, timings=replace(TIMINGS, num_syncs=0))
    record_once(folder, Database(folder.database))
    return folder


def windows(folder: RunFolder, size: int) -> list[dict[str, float]]:
    """The measures of each window, in order."""
    found = query(folder.database, f"SELECT window_index, name, value FROM window_metrics({size})").to_pylist()
    numbers = sorted({row["window_index"] for row in found})
    return [{row["name"]: row["value"] for row in found if row["window_index"] == number} for number in numbers]


@pytest.mark.spec("A-274")
def test_a_window_is_so_many_steps_and_the_last_one_may_be_short(finished: RunFolder):
    sql = "SELECT DISTINCT window_index, first_step, last_step FROM window_metrics(2) ORDER BY ALL"
    assert [tuple(row.values()) for row in query(finished.database, sql).to_pylist()] == [(0, 1, 2), (1, 3, 3)]
    assert len(windows(finished, 100)) == 1


@pytest.mark.spec("A-275")
def test_a_mean_is_over_all_items_of_the_window_not_over_the_means_of_its_steps(finished: RunFolder):
    first, last = windows(finished, 2)
    # Step 1 has rollouts of 3 and 2 tokens; step 2 has eight more, of 25 tokens.
    assert first["completions/mean_length"] == 30 / 10
    assert first["reward"] == first["rewards/correct/mean"] == 4 / 10
    assert first["completions/clipped_ratio"] == 1 / 10
    assert first["rollout/concurrency"] == (4 + 5 + 6 + 7) / 4
    # Standard deviations of (1, 0) and (1, 0, 0, 0): four trained samples and one.
    assert first["reward_group_std"] == pytest.approx((4 * math.sqrt(0.5) + 0.5) / 5)
    assert first["rewards/correct/group_std"] == pytest.approx((4 * math.sqrt(0.5) + 0.5) / 5)
    assert first["batch/row_fill_frac"] == pytest.approx((6 + 5 + 6 + 6 + 5) / 50)
    assert last["completions/mean_length"] == 2.5


def test_means_over_tokens_are_weighted_with_tokens(finished: RunFolder):
    first, _ = windows(finished, 2)
    # Entropies 1 + ticket / 100, and 0.1 more in the second sample of a group; 3 and 2 trained tokens.
    assert first["entropy"] == pytest.approx((3 * (1.0 + 1.01 + 1.02) + 2 * (1.1 + 1.12)) / 13)


@pytest.mark.spec("A-276")
def test_a_rate_is_all_tokens_over_all_seconds(finished: RunFolder):
    first, _ = windows(finished, 2)
    assert first["rollout/generated_tokens_per_s"] == 30 / 16
    assert first["perf/wall_clock_forwarded_tokens_per_s"] == 28 / 16
    assert first["perf/wall_clock_trained_tokens_per_s"] == 13 / 16
    assert first["perf/fwd_bwd_forwarded_tokens_per_s"] == 28 / 3
    assert first["perf/weight_sync_s"] == (0.75 + 4.5) / 3


def test_utilisation_is_all_arithmetic_over_what_could_be_done_in_all_seconds(finished: RunFolder):
    first, _ = windows(finished, 2)
    # 1000 FLOPs a token of 32 000 a second: 28 tokens, 3 s of passes, steps of 4 and 12 s.
    assert first["perf/fwd_bwd_mfu"] == pytest.approx(28_000 / (3 * 32_000))
    assert first["perf/wall_clock_mfu"] == pytest.approx(28_000 / (16 * 32_000))


@pytest.mark.spec("A-277", "A-278", "A-279")
def test_counts_are_summed_extremes_kept_and_the_running_total_is_the_newest(finished: RunFolder):
    first, last = windows(finished, 2)
    assert (first["sample/dropped_stale_count"], last["sample/dropped_stale_count"]) == (2.0, 0.0)
    assert windows(finished, 3)[0]["sample/dropped_stale_count"] == 2.0
    assert (first["completions/min_length"], first["completions/max_length"]) == (1.0, 8.0)
    assert first["completions/max_terminated_length"] == 8.0
    assert first["completions/mean_terminated_length"] == 25 / 9
    assert first["clip_ratio/low_min"] == 0.0
    assert first["sampling/sampling_logp_difference/max"] == pytest.approx(0.5 + 0.02 + 0.1)
    assert (first["num_tokens"], last["num_tokens"]) == (28.0, 39.0)
    assert first["perf/step_s"] == (4 + 12) / 2


@pytest.mark.spec("A-280")
def test_an_amount_per_step_is_averaged_over_the_windows_steps(finished: RunFolder):
    first, last = windows(finished, 2)
    assert (first["batch/samples_per_step"], last["batch/samples_per_step"]) == (2.5, 2.0)
    assert first["batch/groups_per_step"] == 1.5
    assert first["batch/trained_tokens_per_step"] == 6.5
    # One term of each second sample is on a token of the first one's.
    assert first["batch/masked_token_frac"] == pytest.approx((28 - (13 - 2)) / 28)


def test_what_no_step_of_a_window_has_is_absent(finished: RunFolder):
    first, last = windows(finished, 2)
    assert first["rollout/backpressure_s"] == (0.5 + 1.5) / 2
    assert {"rollout/backpressure_s", "perf/weight_sync_s"} & last.keys() == set()


def test_a_limits_share_is_all_waits_over_all_seconds(finished: RunFolder):
    first, last = windows(finished, 2)
    # Of two generators.
    assert first["rollout/backpressure_frac"] == (0.5 + 1.5) / (2 * (4 + 12))
    assert (last["rollout/backpressure_frac"], last["rollout/score_block_frac"]) == (0.0, 0.0)


@pytest.mark.spec("A-318", "A-320", "A-321", "A-322", "A-323", "A-324")
def test_what_servers_said_is_averaged_over_the_polls_of_the_window_and_counters_are_summed(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    common = {"concurrency": 4, "concurrency_cap": 8, "running_requests": 4.0, "queued_requests": 0.0, "retries": 1}
    for ticket, (polls, usage) in enumerate([(1, 0.9), (3, 0.5)]):
        pace = Pace(num_polls=polls, kv_cache_usage=usage, preemptions=2, score_block_seconds=ticket + 1.0, **common)
        add_group(folder, ticket, pace=pace)
    add_group(folder, 2, pace=Pace(concurrency=4, concurrency_cap=8, retries=3))
    for ticket in range(3):
        add_scores(folder, ticket)
        add_done(folder, add_plan(folder, StepKey(0, ticket + 1), [ticket], version=ticket), 6 * (ticket + 1))
    record_once(folder, Database(folder.database))
    (whole,) = windows(folder, 3)
    told = {name.removeprefix("rollout/vllm_"): value for name, value in whole.items() if "vllm_" in name}
    assert told.pop("kv_cache_usage_frac") == pytest.approx((0.9 + 3 * 0.5) / 4)
    assert told == {"running_requests": 4.0, "queued_requests": 0.0, "preemption_count": 4.0, "retry_count": 5.0}
    assert whole["rollout/score_block_s"] == 1.5
    assert {name: value for name, value in windows(folder, 1)[2].items() if "vllm_" in name} == {
        "rollout/vllm_retry_count": 3.0
    }


def test_a_window_of_one_is_a_step(finished: RunFolder):
    found = query(finished.database, "SELECT step, name, value FROM step_metrics WHERE attempt = 0").to_pylist()
    steps = [{row["name"]: row["value"] for row in found if row["step"] == step} for step in (1, 2, 3)]
    assert windows(finished, 1) == steps


@pytest.mark.parametrize("size", ["0", "-1", "2.5", "NULL"])
def test_what_is_no_number_of_steps_is_refused(finished: RunFolder, size: str):
    with pytest.raises(DatabaseError, match=r"window_metrics\(size\)"):
        query(finished.database, f"FROM window_metrics({size})")


def test_windows_hold_the_steps_that_count(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    for ticket in range(5):
        add_group(folder, ticket)
        add_scores(folder, ticket)
    add_attempt(folder, 0)
    for step in (1, 2, 3):
        add_step(folder, 0, step, [step - 1])
    add_attempt(folder, 1, parent=0, base_step=1)
    add_step(folder, 1, 2, [3, 4])
    record_once(folder, Database(folder.database))
    (window,) = windows(folder, 10)
    assert window["batch/groups_per_step"] == 1.5
    assert query(folder.database, "SELECT max(last_step) AS last FROM window_metrics(10)").to_pydict() == {"last": [2]}


@pytest.mark.spec("A-339")
def test_a_micro_batch_has_a_row_for_each_rank_and_a_row_is_not_a_micro_batch(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for ticket in (0, 1):
        add_group(folder, ticket, [a_rollout(0, [9, 9]), a_rollout(1, [9])])
        add_scores(folder, ticket, {"correct": [1.0, 0.0]})
    done = add_done(folder, add_plan(folder, StepKey(0, 1), [0, 1], ranks=2))
    record_once(folder, Database(folder.database))
    (measures,) = windows(folder, 1)
    assert measures["batch/microbatches_per_step"] == done.metrics["batch/microbatches_per_step"] == 2.0
    assert measures["batch/samples_per_row"] == 1.0
