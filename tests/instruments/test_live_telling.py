"""Plain lines about a step that does not come."""

from __future__ import annotations

from collections.abc import Sequence

from agrpo.instruments.history import StepPoint
from agrpo.instruments.live.looking import StageWord
from agrpo.instruments.live.telling import Stalls
from tests.instruments.watched import NOW, looked, point

STOPPED = [
    StageWord(name="generator", spoken=True, quiet_seconds=20.0, silent=True),
    StageWord(name="learner", spoken=True, waiting_for="a scored group"),
]


def said(points: Sequence[StepPoint], *, stages: Sequence[StageWord], until: int) -> dict[int, str]:
    """What is said and when, looking every second from the step at `NOW` on."""
    stalls = Stalls()
    lines = {second: stalls.heard(looked(points, at=NOW + second, stages=stages)) for second in range(until)}
    return {second: line for second, line in lines.items() if line}


def test_a_late_step_is_told_with_the_stage_that_is_silent_at_doubling_intervals():
    # Steps of 10 s are late after 20 s.
    assert said([point(1), point(2), point(3)], stages=STOPPED, until=90) == {
        21: "no step for 21 s: generator silent",
        42: "no step for 42 s: generator silent",
        84: "no step for 84 s: generator silent",
    }


def test_where_no_stage_is_silent_the_learner_says_what_it_waits_for():
    assert said([point(3)], stages=STOPPED[1:], until=40) == {31: "no step for 31 s: learner waits for a scored group"}
    works = [StageWord(name="learner", spoken=True)]
    assert said([point(3)], stages=works, until=40) == {31: "no step for 31 s: learner works"}


def test_a_step_ends_the_stall():
    stalls = Stalls()
    assert stalls.heard(looked([point(2), point(3)], at=NOW + 30, stages=STOPPED))
    assert stalls.heard(looked([point(3), point(4)], at=NOW + 29, stages=STOPPED)) is None
    assert stalls.heard(looked([point(3), point(4)], at=NOW + 31, stages=STOPPED))


def test_a_run_without_a_step_stalls_too_and_a_stage_that_never_spoke_is_named():
    learner = [StageWord(name="learner", spoken=False)]
    assert said([], stages=learner, until=40) == {31: "no step for 31 s: learner has not spoken yet"}
