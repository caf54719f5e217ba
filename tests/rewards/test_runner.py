"""One reward's runner: values and their reasons, the two ways of calling, and when the run must stop."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from agrpo.config import RewardSection
from agrpo.errors import RewardError
from agrpo.rewards.sandbox import RewardRunner
from tests.rewards.worlds import group_of, run, score, section_of, with_runner


def test_values_come_in_order_with_the_rewards_name_and_weight() -> None:
    (scored,) = score(section_of("length", weight=0.5), group_of("a", "bbb", "cc"))
    assert scored.values == [1.0, 3.0, 2.0]
    assert scored.errors == [None, None, None]
    assert (scored.reward, scored.weight) == ("tests.rewards.judges:length", 0.5)
    assert scored.duration_seconds > 0


@pytest.mark.spec("A-201")
@pytest.mark.parametrize("judge", ["length", "async_length", "async_partial"])
def test_plain_and_async_functions_are_scored_alike(judge: str) -> None:
    assert score(section_of(judge), group_of("a", "bbb"))[0].values == [1.0, 3.0]


@pytest.mark.parametrize(
    ("judges", "values"),
    [
        pytest.param(
            ("meets_sync", "meets_other", "meets_async"), [1.0, 2.0, 3.0], marks=pytest.mark.spec("A-201", "A-202")
        ),
        pytest.param(("meets_async", "meets_another_async"), [3.0, 4.0], marks=pytest.mark.spec("G-189")),
    ],
)
def test_rewards_run_side_by_side(judges: tuple[str, ...], values: list[float], tmp_path: Path) -> None:
    async def work() -> list[list[float | None]]:
        runners = [RewardRunner(section_of(judge)) for judge in judges]
        group = group_of("a", folder=str(tmp_path))
        try:
            return [each.values for each in await asyncio.gather(*(runner.score(group) for runner in runners))]
        finally:
            await asyncio.gather(*(runner.close() for runner in runners))

    assert run(work()) == [[value] for value in values]


def test_a_reward_of_agrpo_is_named_alone() -> None:
    section = RewardSection(name="exact_match", settings={"fact": "solution"})
    assert score(section, group_of("4", "5", solution="4"))[0].values == [1.0, 0.0]


def test_a_group_without_rollouts_starts_nothing() -> None:
    (scored,) = score(section_of("no_such_judge"), group_of())
    assert (scored.values, scored.errors) == ([], [])


@pytest.mark.spec("A-200", "G-188")
def test_an_answer_of_the_wrong_length_is_no_answer() -> None:
    (scored,) = score(section_of("sizes_differ"), group_of("a", "b", "c"))
    assert scored.values == [None, None, None]
    assert all("for 3 completions; expected one per completion" in (error or "") for error in scored.errors)


@pytest.mark.spec("A-200", "G-188")
def test_a_judge_that_is_never_right_about_the_length_gives_no_values() -> None:
    (scored,) = score(section_of("returns"), group_of("a", "b", value="[1.0] * 3"))
    assert scored.values == [None, None]
    assert scored.errors == ["it returned 3 values for 2 completions; expected one per completion"] * 2


def test_a_reward_that_needs_the_whole_group_is_not_asked_about_one() -> None:
    (scored,) = score(section_of("compare"), group_of("a", "b"))
    assert scored.values == [None, None]
    assert all("ValueError: nothing to compare (judges.py:" in (error or "") for error in scored.errors)


def test_nothing_is_kept_from_one_call_to_the_next() -> None:
    assert [each.values for each in score(section_of("remembers"), group_of("a"), group_of("a"))] == [[1.0], [1.0]]


@pytest.mark.spec("A-205")
def test_a_judge_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert score(section_of("environment"), group_of("a", variable="CUDA_VISIBLE_DEVICES"))[0].values == [1.0]


def test_what_a_judge_prints_reaches_the_log_and_not_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "agrpo.rewards"):
        assert score(section_of("says"), group_of("a"))[0].values == [1.0]
    printed = [record.getMessage() for record in caplog.records]
    for line in ("hello from the judge", "and from below python", "and from its errors"):
        assert f"tests.rewards.judges:says: {line}" in printed


@pytest.mark.spec("A-207")
@pytest.mark.parametrize("judge", ["misbehaves", "async_misbehaves"])
def test_a_failing_call_stops_the_run_where_that_is_asked_for(judge: str) -> None:
    way = "fail" if judge == "misbehaves" else "async_fail"
    with pytest.raises(RewardError, match=r"failed on group 7: KeyError: 'no such answer'.*on_error"):
        score(section_of(judge, on_error="stop"), group_of("a", "bad", ticket=7, way=way))


def test_a_value_that_is_no_number_stops_the_run_where_that_is_asked_for() -> None:
    with pytest.raises(RewardError, match="completion 1: it returned nan"):
        score(section_of("returns", on_error="stop"), group_of("a", "b", value="[1.0, float('nan')]"))


@pytest.mark.spec("A-207")
def test_eight_groups_in_a_row_without_a_value_stop_the_run() -> None:
    lost = [group_of("bad", "bad", way="fail") for _ in range(8)]
    with pytest.raises(RewardError, match=r"every completion of 8 groups in a row.*KeyError: 'no such answer'"):
        score(section_of("misbehaves"), *lost)


def test_one_value_in_between_lets_the_run_go_on() -> None:
    lost = group_of("bad", "bad", way="fail")
    groups = [lost] * 7 + [group_of("bad", "fine", way="fail")] + [lost] * 7
    assert len(score(section_of("misbehaves"), *groups)) == 15


@pytest.mark.spec("K21")
@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("async_fail", "KeyError: 'no such answer' (judges.py:"),
        ("async_exit", "it called exit(3)"),
        ("async_hang", "it gave no answer within 0.3 s"),
        ("async_cancel", "asyncio.exceptions.CancelledError (judges.py:"),
        ("async_interrupt", "KeyboardInterrupt (judges.py:"),
        (
            "async_block",
            "it gave no answer within 0.3 s (rewards.timeout_seconds): it held the scorer's loop for 0.4 s",
        ),
    ],
)
def test_an_async_judge_fails_one_completion_at_a_time(way: str, reason: str) -> None:
    (scored,) = score(section_of("async_misbehaves", timeout_seconds=0.3), group_of("a", "bad", "ccc", way=way))
    assert scored.values == [1.0, None, 3.0]
    assert scored.errors[1] is not None and scored.errors[1].startswith(reason)


def test_an_async_judge_that_blocks_is_named_with_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    group = group_of("a", value="time.sleep(1.1) or [1.0]")
    assert score(section_of("async_returns", timeout_seconds=30.0), group, group)[0].values == [1.0]
    (told,) = [record.getMessage() for record in caplog.records if "held the scorer's loop" in record.getMessage()]
    assert told.startswith("reward tests.rewards.judges:async_returns held the scorer's loop for 1.")


def test_the_clock_decides_no_value_of_a_reproducible_run() -> None:
    section = section_of("sleeps", timeout_seconds=0.5)
    assert score(section, group_of("a"), reproducible=True)[0].values == [1.0]
    assert score(section, group_of("a"))[0].values == [None]


@pytest.mark.parametrize("judge", ["misbehaves", "async_misbehaves"])
def test_a_reproducible_run_stops_when_the_clock_runs_out(judge: str) -> None:
    way = "ignore_signals" if judge == "misbehaves" else "async_hang"
    with pytest.raises(RewardError, match=r"group 3: it gave no answer within 0.5 s.*reproducible"):
        score(section_of(judge, timeout_seconds=0.05), group_of("bad", ticket=3, way=way), reproducible=True)


def test_processor_time_decides_in_a_reproducible_run() -> None:
    group = group_of("bad", way="loop_in_python")
    (scored,) = score(section_of("misbehaves", timeout_seconds=1.0), group, reproducible=True)
    assert scored.errors == ["it used more than 1 s of processor time (rewards.timeout_seconds)"]


def test_a_reward_that_cannot_be_loaded_stops_the_run_at_its_first_group() -> None:
    with pytest.raises(RewardError, match='no "lenght"; did you mean "length"'):
        score(section_of("lenght"), group_of("a"))


def test_groups_scored_at_once_each_get_their_own_values() -> None:
    groups = [group_of("x" * size, "y" * (size + 1), "z" * 2**16) for size in range(1, 7)]

    async def work(runner: RewardRunner) -> list[list[float | None]]:
        return [each.values for each in await asyncio.gather(*(runner.score(group) for group in groups))]

    expected = [[float(size), size + 1.0, 2.0**16] for size in range(1, 7)]
    assert run(with_runner(section_of("length"), work)) == expected


def test_a_closed_runner_refuses_to_score() -> None:
    async def work(runner: RewardRunner) -> None:
        await runner.score(group_of("a"))
        await runner.close()
        await runner.score(group_of("a"))

    with pytest.raises(RewardError, match="after it was closed"):
        run(with_runner(section_of("length"), work))
