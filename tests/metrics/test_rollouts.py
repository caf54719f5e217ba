"""What metrics say of how groups came about, worked by hand."""

from __future__ import annotations

import pytest

from agrpo.records.pace import Pace
from agrpo.records.progress import DropReason
from agrpo.records.score import Scoring
from agrpo.records.timings import StepTimings
from tests.metrics.made import family, measured, scored


@pytest.mark.spec("A-307", "A-311", "A-312")
def test_durations_are_of_every_rollout_and_turns_of_those_with_an_answer():
    groups = [
        scored(0, {"a": [1.0, 0.0]}, seconds=[1.0, 2.0], turns=[1, 4], sequences=[1, 3]),
        scored(1, {"a": [1.0, None]}, lengths=[3, 0], seconds=[3.0, 6.0], turns=[1, 0], sequences=[0, 0]),
    ]
    measures = family(measured(groups, drops={1: DropReason.TOO_FEW_SCORES}), "rollout/")
    assert measures["duration_s"] == 3.0
    assert (measures["turns_mean"], measures["turns_max"]) == (2.0, 4.0)
    assert measures["samples_per_rollout"] == 4 / 3


@pytest.mark.spec("A-313", "A-314")
def test_drift_is_averaged_over_transitions_and_a_transition_without_a_fork_counts_nothing():
    groups = [
        scored(0, {"a": [1.0, 0.0]}, turns=[3, 1], drifts=[[0, 6], []]),
        scored(1, {"a": [1.0, 1.0]}, turns=[2, 2], drifts=[[0], [2]]),
    ]
    measures = family(measured(groups, drops={1: DropReason.EQUAL_REWARDS}), "rollout/")
    assert (measures["fork_frac"], measures["drift_tokens_mean"], measures["drift_tokens_max"]) == (0.5, 2.0, 6.0)
    assert "fork_frac" not in family(measured([scored(0, {"a": [1.0, 0.0]})]), "rollout/")


@pytest.mark.spec("A-308")
def test_generated_tokens_of_dropped_groups_count_in_the_rate():
    groups = [scored(0, {"a": [1.0, 0.0]}, lengths=[3, 4]), scored(1, {"a": [1.0, 1.0]}, lengths=[6, 7])]
    measures = measured(groups, drops={1: DropReason.STALE}, timings=StepTimings(step_seconds=8.0))
    assert measures["rollout/generated_tokens_per_s"] == 2.5


@pytest.mark.spec("A-309", "A-310", "A-319")
def test_pace_is_averaged_over_groups_and_backpressure_over_those_that_waited():
    paces = [
        Pace(concurrency=4, concurrency_cap=16),
        Pace(concurrency=8, concurrency_cap=16, backpressure_seconds=0.5),
        Pace(concurrency=12, concurrency_cap=32, backpressure_seconds=0.0),
    ]
    groups = [scored(ticket, {"a": [1.0, 0.0]}, pace=pace) for ticket, pace in enumerate([*paces, None])]
    measures = family(measured(groups), "rollout/")
    assert measures["concurrency"] == 8.0
    assert measures["concurrency_cap"] == 64 / 3
    assert measures["backpressure_s"] == 0.25


@pytest.mark.spec("A-318", "A-319")
def test_each_limit_has_the_mean_wait_of_the_groups_that_it_held():
    paces = [
        Pace(concurrency=4, concurrency_cap=4, load_wait_seconds=1.0, ceiling_wait_seconds=0.5),
        Pace(concurrency=4, concurrency_cap=4, load_wait_seconds=2.0, score_block_seconds=4.0),
        Pace(concurrency=4, concurrency_cap=4),
    ]
    groups = [scored(ticket, {"a": [1.0, 0.0]}, pace=pace) for ticket, pace in enumerate(paces)]
    measures = family(measured(groups), "rollout/")
    waits = ("load_wait_s", "ceiling_wait_s", "score_block_s", "backpressure_s")
    assert [measures.get(name) for name in waits] == [1.5, 0.5, 4.0, None]


def test_each_limit_has_the_share_of_the_generators_time_that_it_took():
    """Steps of 4 s. A limit that held no group took none; where no pace is known nothing is said."""
    paces = [Pace(concurrency=4, concurrency_cap=4, backpressure_seconds=0.125, load_wait_seconds=1.0)] * 16
    groups = [scored(ticket, {"a": [1.0, 0.0]}, pace=pace) for ticket, pace in enumerate([*paces[1:], None])]
    names = ("backpressure_frac", "load_wait_frac", "ceiling_wait_frac", "score_block_frac")
    alone, shared = (family(measured(groups, num_generators=number), "rollout/") for number in (1, 3))
    assert [alone[name] for name in names] == [15 * 0.125 / 4, 15 / 4, 0.0, 0.0]
    assert [shared[name] for name in names] == [15 * 0.125 / 12, 15 / 12, 0.0, 0.0]
    assert not {*names} & family(measured(groups[-1:]), "rollout/").keys()


@pytest.mark.spec("A-320", "A-321", "A-322", "A-323", "A-324")
def test_what_servers_said_is_averaged_over_polls_and_counters_are_summed():
    paces = [
        _told(num_polls=1, usage=0.9, running=8.0, queued=0.0, preemptions=3, retries=0),
        _told(num_polls=3, usage=0.5, running=4.0, queued=2.0, preemptions=0, retries=2),
        Pace(concurrency=4, concurrency_cap=4),
    ]
    groups = [scored(ticket, {"a": [1.0, 0.0]}, pace=pace) for ticket, pace in enumerate(paces)]
    measures = family(measured(groups), "rollout/vllm_")
    assert measures.pop("kv_cache_usage_frac") == pytest.approx(0.6)
    assert measures == {"running_requests": 5.0, "queued_requests": 1.5, "preemption_count": 3.0, "retry_count": 2.0}
    assert family(measured(groups[2:]), "rollout/vllm_") == {}
    silent = scored(3, {"a": [1.0, 0.0]}, pace=Pace(concurrency=4, concurrency_cap=4, retries=5))
    assert family(measured([*groups[2:], silent]), "rollout/vllm_") == {"retry_count": 5.0}


def _told(*, num_polls: int, usage: float, running: float, queued: float, preemptions: int, retries: int) -> Pace:
    return Pace(
        concurrency=4,
        concurrency_cap=4,
        num_polls=num_polls,
        kv_cache_usage=usage,
        running_requests=running,
        queued_requests=queued,
        preemptions=preemptions,
        retries=retries,
    )


@pytest.mark.spec("A-315", "A-316", "A-317")
def test_scoring_is_averaged_over_groups_and_the_queue_is_the_plans():
    scorings = [
        Scoring(seconds=0.5, wait_seconds=2.0, queue_size=0),
        Scoring(seconds=1.0, wait_seconds=0.0, queue_size=3),
    ]
    groups = [scored(ticket, {"a": [1.0, 0.0]}, scoring=scoring) for ticket, scoring in enumerate(scorings)]
    measures = family(measured(groups, num_queued_samples=9), "rollout/")
    assert (measures["score_s"], measures["score_wait_s"], measures["score_queue_size"]) == (0.75, 1.0, 1.5)
    assert measures["queue_size"] == 9.0


def test_what_was_not_recorded_is_absent():
    measures = family(measured([scored(0, {"a": [1.0, 0.0]})], timings=StepTimings()), "rollout/")
    assert measures.keys() == {
        "duration_s",
        "turns_mean",
        "turns_max",
        "samples_per_rollout",
        "failed_count",
        "unasked_count",
    }
