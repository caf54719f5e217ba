"""How far a run is and how long it will take, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agrpo.instruments.history import StepPoint
from agrpo.instruments.progress import late_seconds, seconds_left, share_done, usual_seconds


def document(*, prompts_per_epoch: int = 50, **stop: int | None) -> dict[str, Any]:
    return {"settings": {"tree": {"stop": stop}}, "prompts_per_epoch": prompts_per_epoch}


def point(step: int, finished_at: float, *, num_prompts: int = 0, attempt: int = 0) -> StepPoint:
    return StepPoint(step=step, attempt=attempt, finished_at=finished_at, num_prompts=num_prompts, metrics={})


def test_the_share_done_counts_steps_where_max_steps_is_set():
    assert share_done(document(max_steps=8, epochs=1), point(2, 0.0, num_prompts=49)) == 0.25


def test_the_share_done_counts_consumed_prompts_where_epochs_end_the_run():
    assert share_done(document(max_steps=None, epochs=2), point(9, 0.0, num_prompts=25)) == 0.25


def test_the_last_epoch_may_be_overrun_and_the_share_done_stays_whole():
    assert share_done(document(max_steps=None, epochs=1), point(9, 0.0, num_prompts=52)) == 1.0


def test_a_document_without_an_end_has_nothing_done_and_no_time_left_to_tell():
    assert share_done(document(), point(3, 0.0)) == 0.0
    assert seconds_left(document(), [point(1, 0.0), point(2, 1.0)]) is None


def test_the_time_left_is_the_median_interval_times_the_steps_left():
    points = [point(1, 0.0), point(2, 2.0), point(3, 4.0), point(4, 64.0)]
    assert seconds_left(document(max_steps=10), points) == 6 * 2.0


def test_in_epochs_the_time_left_is_the_prompts_left_at_the_prompts_of_a_recent_step():
    points = [point(1, 0.0, num_prompts=6), point(2, 3.0, num_prompts=10), point(3, 6.0, num_prompts=18)]
    # 32 of 50 prompts are left, 12 prompts took 2 steps: 5 1/3 steps of 3 s.
    assert seconds_left(document(epochs=1), points) == pytest.approx(16.0)


def test_before_two_steps_of_the_newest_attempt_no_time_is_told():
    assert seconds_left(document(max_steps=4), []) is None
    assert seconds_left(document(max_steps=4), [point(1, 0.0)]) is None
    assert seconds_left(document(max_steps=4), [point(1, 0.0), point(2, 900.0, attempt=1)]) is None


def test_the_pause_before_a_resume_and_steps_of_long_ago_do_not_count():
    resumed = [point(1, 0.0), point(2, 5.0), point(3, 905.0, attempt=1), point(4, 906.0, attempt=1)]
    assert seconds_left(document(max_steps=6), resumed) == 2 * 1.0
    slow_once = [point(step, 100.0 * step) for step in range(1, 31)]
    fast = [point(30 + step, 3000.0 + step) for step in range(1, 21)]
    assert seconds_left(document(max_steps=60), slow_once + fast) == 10 * 1.0


def test_a_run_past_its_end_has_no_time_left():
    assert seconds_left(document(max_steps=2), [point(1, 0.0), point(2, 1.0)]) == 0.0


def test_steps_that_grow_are_paced_by_the_newest_five():
    ends = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 26.0, 46.0, 66.0, 86.0, 106.0]
    points = [point(step, end) for step, end in enumerate(ends, start=1)]
    # Eleven intervals: six of 1 s, then five of 20 s.
    assert usual_seconds(points) == 20.0
    assert seconds_left(document(max_steps=14), points) == 2 * 20.0


def test_the_time_left_stands_still_once_the_step_at_work_takes_longer_than_usual():
    points = [point(1, 0.0), point(2, 4.0)]
    left = [seconds_left(document(max_steps=4), points, since_step=passed) for passed in (0.0, 3.0, 4.0, 30.0)]
    assert left == [8.0, 5.0, 4.0, 4.0]


def test_a_step_is_late_after_half_the_usual_time_and_at_least_ten_seconds_more():
    assert late_seconds([point(1, 0.0), point(2, 4.0)], attempt=0) == 14.0
    assert late_seconds([point(1, 0.0), point(2, 60.0)], attempt=0) == 90.0


def test_the_first_step_of_an_attempt_is_given_thirty_seconds_or_what_is_usual_in_the_run():
    assert late_seconds([], attempt=None) == 30.0
    assert late_seconds([point(1, 0.0)], attempt=0) == 30.0
    assert late_seconds([point(1, 0.0), point(2, 4.0)], attempt=1) == 30.0
    assert late_seconds([point(1, 0.0), point(2, 60.0)], attempt=1) == 90.0
