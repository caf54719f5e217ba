"""How long each turn took to sample, and when it was asked for: of agrpo's own loop, of hooks, and of a rollout_func."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.records.rollout import Rollout
from agrpo.stages.sampled import sampled_of
from tests.stages.playing import Line, Stage, call_of
from tests.stages.test_function_rollouts import Made, answered, row
from tests.stages.test_own_rollout import Played
from tests.stages.test_sampling import sampled, seed_of

LATENCY_SECONDS = 0.02


def said(index: int, turn: int) -> Line:
    """A call and an answer, each of which takes its time."""
    time.sleep(LATENCY_SECONDS)
    return (call_of("add", a=4, b=5), "9")[turn]


def times_of(rollout: Rollout) -> list[tuple[float, float]]:
    """When each turn was begun and when it was answered, in seconds from the rollout's begin."""
    found: list[tuple[float, float]] = []
    for turn in rollout.turns:
        assert turn.begun_seconds is not None and turn.duration_seconds is not None
        found.append((turn.begun_seconds, turn.begun_seconds + turn.duration_seconds))
    return found


def assert_in_order(rollout: Rollout, num_turns: int) -> None:
    """Turns follow one another within the rollout, and each took the engine's time."""
    times = times_of(rollout)
    assert len(times) == num_turns
    assert all(answered - begun >= LATENCY_SECONDS for begun, answered in times)
    moments = [0.0, *(moment for turn in times for moment in turn), rollout.duration_seconds]
    assert moments == sorted(moments)


@pytest.mark.parametrize("reproducible", [False, True])
def test_every_turn_of_a_rollout_is_timed_from_its_request_to_its_answer(tiny_model: Path, reproducible: bool):
    for rollout in Stage(tiny_model).play(said, rollouts=2, reproducible=reproducible):
        assert_in_order(rollout, 2)
        (_, first), (second, _) = times_of(rollout)
        assert second - first >= rollout.tool_calls[0].duration_seconds, "the call stands between the turns"


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("loop", ["Passing", "Twice"])
def test_turns_of_a_hook_are_timed_from_the_rollouts_begin(tiny_model: Path, loop: str, reproducible: bool):
    engine = {"reproducible": reproducible}
    for rollout in Played(tiny_model, loop, said, engine=engine).rollouts():
        assert_in_order(rollout, 2)


def test_a_turn_that_a_hook_makes_is_timed_where_agrpo_has_asked_for_it_and_else_not(tiny_model: Path):
    for whole in (False, True):
        settings = {"whole": whole, "rest_seconds": LATENCY_SECONDS}
        played = Played(tiny_model, "FromElsewhere", said, loop_settings=settings)
        for rollout in played.rollouts():
            (turn,) = rollout.turns
            assert (turn.duration_seconds is None) == (turn.begun_seconds is None) == whole
            assert whole or times_of(rollout)[0][0] >= LATENCY_SECONDS, (
                "from the rollout's begin, not agrpo's part of it"
            )
        assert played.engine.asked == []


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("function", ["passing", "passing_async"])
def test_what_a_rollout_func_returns_is_timed_by_the_answers_that_it_holds(
    tiny_model: Path, function: str, reproducible: bool
):
    for rollout in Made(
        tiny_model, function, lambda index, _: said(index, 1), engine={"reproducible": reproducible}
    ).rollouts():
        assert_in_order(rollout, 1)


def test_of_several_answers_in_one_completion_the_first_begins_it_and_their_seconds_are_added_up():
    asked = [
        replace(answered([1], [5, 6], 2), begun_seconds=0.5, duration_seconds=1.0),
        replace(answered([1, 5, 6, 50], [7], 4), begun_seconds=3.0, duration_seconds=0.25),
        replace(answered([1], [8], 4), begun_seconds=0.0, duration_seconds=9.0),
    ]
    both, neither = sampled_of([row([1], [5, 6, 50, 7]), row([2], [5])], asked, 3)
    assert (both.begun_seconds, both.duration_seconds) == (0.5, 1.25)
    assert (neither.begun_seconds, neither.duration_seconds) == (None, None)


def test_a_request_that_was_asked_again_took_both_times(tiny_model: Path):
    rollouts = sampled(
        tiny_model, lambda request, asked: "never answers" if request.seed == seed_of(2) and asked == 1 else None
    )
    seconds = [rollout.turns[0].duration_seconds or 0.0 for rollout in rollouts]
    assert seconds[2] >= 0.2  # `request_timeout_seconds` of these rollouts
    assert max(seconds[:2] + seconds[3:]) < seconds[2]
