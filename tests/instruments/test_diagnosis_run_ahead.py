"""Limits that hold many groups for a moment each: what is read of them is the time that they took in all."""

from __future__ import annotations

import random

import pytest

from agrpo.instruments.diagnosis import diagnose
from agrpo.instruments.history import StepPoint
from agrpo.instruments.limits import binding, waits_of
from agrpo.records.pace import Limit, Pace
from agrpo.records.timings import StepTimings
from agrpo.stages.waits import Waits
from agrpo.staleness import limit_ticket
from tests.instruments.made_points import GROUPS, SETTINGS, rules, with_settings
from tests.metrics.made import measured, scored

TICK_SECONDS = 0.02
TRAINING_SECONDS = 1.0


def point_of(step: int, paces: list[Pace], timings: StepTimings, queued: int = 0) -> StepPoint:
    groups = [scored(ticket, {"a": [1.0, 0.0]}, pace=pace) for ticket, pace in enumerate(paces)]
    metrics = measured(groups, timings=timings, num_queued_samples=8 * queued)
    return StepPoint(step=step, attempt=0, finished_at=float(step), num_prompts=GROUPS * step, metrics=metrics)


def simulated(max_staleness: int) -> list[StepPoint]:
    """Forty steps. A group takes 2 to 6 s whatever runs beside it, and the learner says what it has taken at once."""
    chance, now, points = random.Random(0), 0.0, []
    waits, paces, ends = Waits(lambda: now), [], []
    consumed, taken, floor = set(), set(), 0
    began, trains_until, waited, queued = 0.0, None, 0.0, 0
    while len(points) < 40:
        if trains_until is None:
            ready = [t for t in range(floor, len(ends)) if ends[t] <= now and t not in consumed | taken]
            queued = len(ready) if now == began else queued
            taken |= {*ready[: GROUPS - len(taken)]}
            if len(taken) == GROUPS:
                trains_until, waited = now + TRAINING_SECONDS, now - began
        elif now >= trains_until:
            timings = StepTimings(step_seconds=now - began, wait_seconds=waited)
            points.append(point_of(len(points) + 1, [paces[ticket] for ticket in sorted(taken)], timings, queued))
            consumed, taken, began, trains_until = consumed | taken, set(), now, None
        while floor in consumed:
            floor += 1
        limit = limit_ticket(consumed | taken, floor, {}, 1.0, max_staleness * GROUPS)
        while len(ends) < limit:
            held = waits.take().get(Limit.RUN_AHEAD)
            paces.append(Pace(concurrency=8, concurrency_cap=512, backpressure_seconds=held))
            ends.append(now + chance.uniform(2.0, 6.0))
        waits.note(Limit.RUN_AHEAD)
        now += TICK_SECONDS
    return points


@pytest.mark.spec("A-115")
def test_an_allowance_of_one_step_that_is_given_out_group_by_group_is_too_tight():
    points = simulated(max_staleness=1)
    last = points[-1].metrics
    assert last["rollout/backpressure_s"] < 0.1 * last["perf/step_s"]  # what a group waits
    tight = diagnose(points, with_settings(**{"async": {"max_staleness": 1}}))
    assert tight[0].rule == "A-115"
    assert tight[0].reading.startswith(
        "Training waits 3.1 s of every 4.1 s step for scored groups, and yet generation waits 4.1 s of it for leave to start"
    )
    ample = diagnose(simulated(max_staleness=4), with_settings(**{"async": {"max_staleness": 4}}))
    assert not {"A-113", "A-115"} & {*rules(ample)}


def test_a_full_scoring_queue_that_holds_every_group_for_a_moment_is_what_training_waits_for():
    paces = [Pace(concurrency=8, concurrency_cap=512, score_block_seconds=0.1, ceiling_wait_seconds=0.01)] * GROUPS
    points = [point_of(step, paces, StepTimings(step_seconds=4.0, wait_seconds=2.0)) for step in range(1, 21)]
    found = diagnose(points, SETTINGS)
    assert found[0].rule == "agrpo/scoring-bound"
    assert "Generation waits 3.2 s of it" in found[0].reading


def test_the_limit_that_binds_is_the_one_that_took_most_time_not_the_one_with_the_longest_wait():
    short = Pace(concurrency=8, concurrency_cap=512, backpressure_seconds=0.1)
    long = Pace(concurrency=8, concurrency_cap=512, ceiling_wait_seconds=0.5)
    metrics = point_of(1, [short] * 31 + [long], StepTimings(step_seconds=4.0)).metrics
    assert binding(metrics) is Limit.RUN_AHEAD
    assert waits_of(metrics) == pytest.approx({Limit.RUN_AHEAD: 3.1, Limit.CEILING: 0.5})
