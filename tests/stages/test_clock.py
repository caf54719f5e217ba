"""The learner's clock."""

from __future__ import annotations

import time

import pytest

from agrpo.stages.clock import StepClock


def test_every_moment_is_charged_to_one_part_and_the_parts_add_up():
    clock = StepClock()
    with clock.part("read"):
        time.sleep(0.002)
        with clock.part("wait"):
            time.sleep(0.02)
    with clock.part("sync"), clock.part("sync_transfer"):
        time.sleep(0.002)
    clock.count_sync()
    spent = clock.lap()
    parts = (spent.read_seconds, spent.wait_seconds, spent.sync_seconds, spent.other_seconds)
    assert spent.step_seconds == pytest.approx(sum(parts), abs=1e-12)
    assert spent.wait_seconds > spent.read_seconds > 0
    assert 0 < spent.sync_transfer_seconds <= spent.sync_seconds
    assert spent.num_syncs == 1


def test_parts_of_a_sync_are_in_its_time_and_told_apart():
    clock = StepClock()
    with clock.part("sync"), clock.part("sync_transfer"):
        clock.move("sync_pause", 2.0)
    with clock.part("sync"), clock.part("sync_barrier"):
        time.sleep(0.002)
    spent = clock.lap()
    assert spent.sync_pause_seconds == 2.0 and spent.sync_barrier_seconds > 0
    inner = spent.sync_transfer_seconds + spent.sync_pause_seconds + spent.sync_barrier_seconds
    assert inner <= spent.sync_seconds <= spent.step_seconds


def test_seconds_measured_elsewhere_are_taken_from_the_open_part():
    clock = StepClock()
    clock.move("forward", 2.0)
    clock.move("optimizer", 1.0)
    spent = clock.lap()
    assert (spent.forward_seconds, spent.optimizer_seconds) == (2.0, 1.0)
    assert spent.step_seconds == pytest.approx(spent.other_seconds + 3.0)
    assert spent.other_seconds == pytest.approx(-3.0, abs=0.1)


def test_a_lap_begins_the_clock_anew():
    clock = StepClock()
    clock.move("forward", 2.0)
    clock.count_sync()
    clock.lap()
    spent = clock.lap()
    assert (spent.forward_seconds, spent.num_syncs) == (0.0, 0)
