"""What metrics say of tools, worked by hand."""

from __future__ import annotations

import math

import pytest

from agrpo.metrics.names import measure_named
from agrpo.records.progress import DropReason
from agrpo.records.rollout import CallFailure, ToolCall
from tests.metrics.made import family, measured, scored


def call(turn_index: int, name: str, seconds: float = 0.0, failure: CallFailure | None = None) -> ToolCall:
    return ToolCall(turn_index=turn_index, name=name, duration_seconds=seconds, failure=failure)


CALLS = [
    [call(0, "add", 0.25), call(0, "add", 0.5), call(1, "say", 3.0, CallFailure.TIMEOUT)],
    [],
    [
        call(0, "ad", failure=CallFailure.UNKNOWN_NAME),
        call(2, "", failure=CallFailure.MALFORMED),
        call(3, "add", failure=CallFailure.BAD_ARGUMENTS),
    ],
    [call(0, "add", 0.25)],
]


@pytest.mark.spec("A-287", "A-288", "A-325", "A-326", "A-327", "A-328", "A-329")
def test_calls_of_all_rollouts_count_and_only_those_that_ran_have_a_latency():
    groups = [
        scored(0, {"a": [1.0, 0.0]}, calls=CALLS[:2], exhausted=[True, False]),
        scored(1, {"a": [1.0, 1.0]}, calls=CALLS[2:], exhausted=[False, False]),
    ]
    measures = family(measured(groups, drops={1: DropReason.EQUAL_REWARDS}, has_tools=True), "tools/")
    assert measures == {
        "call_frequency": 7 / 4,
        "failure_frequency": 4 / 7,
        "latency_s": 1.0,
        "unknown_name_count": 1.0,
        "parallel_calls_mean": 7 / 6,
        "loop_exhausted_frac": 0.25,
        "add/latency_s": 1 / 3,
        "add/call_count": 4.0,
        "add/failure_count": 1.0,
        "say/latency_s": 3.0,
        "say/call_count": 1.0,
        "say/failure_count": 1.0,
    }
    assert all(measure_named(f"tools/{name}") for name in measures)


@pytest.mark.spec("A-287", "A-288", "A-329")
def test_a_step_without_calls_says_so_and_a_run_without_tools_says_nothing():
    groups = [scored(0, {"a": [1.0, 0.0]})]
    measures = family(measured(groups, has_tools=True), "tools/")
    assert math.isnan(measures.pop("failure_frequency"))
    assert measures == {"call_frequency": 0.0, "unknown_name_count": 0.0, "loop_exhausted_frac": 0.0}
    assert family(measured(groups), "tools/") == {}
