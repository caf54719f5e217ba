"""Stages that die or stand still are started again, a few times, with growing pauses, and never at another's expense."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import SupervisionSection
from agrpo.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineError,
    ProbeMismatch,
    ReplayMismatch,
    Retired,
    RewardError,
    StageFailed,
    StoreError,
    StoreFull,
    StoreLostWrites,
)
from agrpo.queue.filesystems.opening import open_filesystem
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.process import Supervisor
from agrpo.stages.report import may_pass
from agrpo.stages.supervision import Restarts, Supervision
from agrpo.stages.watchdog import Watchdog
from tests.processes import until

EXAMPLE = "tests.stages.stage_examples"
PATIENCE_SECONDS = 60.0
"""After which an example that does not end is stopped."""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(str(tmp_path), tmp_path / "logs", grace_seconds=1.0) as entered:
        yield entered


class Told:
    """What is told of the stages, in order."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.reasons: list[str] = []

    def __call__(self, kind: str, payload: dict[str, Any]) -> None:
        self.kinds.append(kind)
        self.reasons.append(payload.get("reason", ""))


def keep(
    supervisor: Supervisor,
    example: str,
    *,
    stop: threading.Event | None = None,
    watchdog: Watchdog | None = None,
    **rule: Any,
) -> Told:
    """Keep one example at work to its end, or its failure."""
    told = Told()
    settings = SupervisionSection(**{"first_pause_seconds": 0.0, **rule})
    supervision = Supervision(supervisor, settings, watchdog=watchdog, on_event=told)
    stop = stop or threading.Event()
    patience = threading.Timer(PATIENCE_SECONDS, stop.set)
    patience.start()
    try:
        supervision.run(EXAMPLE, stop, env={"EXAMPLE": example})
    except StageFailed as failure:
        told.reasons.append(str(failure))
    finally:
        patience.cancel()
    return told


def listening(folder: Path, *, stall: float = 60.0, idle: float = 60.0) -> Watchdog:
    return Watchdog(RunFolder(open_filesystem(str(folder))).beats, stall_seconds=stall, idle_seconds=idle)


def test_pauses_double_to_the_longest_and_then_the_limit_is_reached() -> None:
    restarts = Restarts(rule=SupervisionSection(restarts=4, first_pause_seconds=1.5, longest_pause_seconds=5))
    assert [restarts.pause_seconds(0) for _ in range(5)] == [1.5, 3.0, 5.0, 5.0, None]


def test_steady_work_lets_earlier_deaths_be_forgotten() -> None:
    restarts = Restarts(rule=SupervisionSection(restarts=2, steady_seconds=600))
    assert [restarts.pause_seconds(worked) for worked in (0, 599, 600, 5, 0)] == [1.0, 2.0, 1.0, 2.0, None]


@pytest.mark.parametrize("example", ["replay_and_die", "start_and_die"])
def test_a_replay_or_a_start_is_no_work_that_lets_earlier_deaths_be_forgotten(
    supervisor: Supervisor, tmp_path: Path, example: str
) -> None:
    with listening(tmp_path, stall=1.0) as watchdog:
        told = keep(supervisor, example, watchdog=watchdog, restarts=1, steady_seconds=1.0)
    assert told.kinds == ["stage_started", "stage_restarted", "stage_failed"]
    assert "it was started again 1 times, the limit" in told.reasons[-1]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (StoreError(""), True),
        (EngineError(""), True),
        (ProbeMismatch(""), True),
        (DeadlineExceeded(""), True),
        (ConnectionResetError(), True),
        (MemoryError(), True),
        (type("OutOfMemoryError", (RuntimeError,), {})(), True),
        (StoreFull(""), False),
        (StoreLostWrites(""), False),
        (ConfigError(""), False),
        (RewardError(""), False),
        (ReplayMismatch(""), False),
        (Retired(""), False),
        (KeyError("los"), False),
        (AssertionError(), False),
    ],
)
def test_what_the_world_outside_did_may_pass_and_all_else_would_come_again(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


def test_a_stage_that_dies_is_started_again_as_often_as_allowed(supervisor: Supervisor, tmp_path: Path) -> None:
    told = keep(supervisor, "die_twice", restarts=2)
    assert told.kinds == ["stage_started", "stage_restarted", "stage_restarted"]
    assert len(list((tmp_path / "deaths").iterdir())) == 2


def test_one_death_more_than_allowed_fails_with_the_last_words_and_the_limit(supervisor: Supervisor) -> None:
    told = keep(supervisor, "kill_itself", restarts=2)
    assert told.kinds == ["stage_started", "stage_restarted", "stage_restarted", "stage_failed"]
    assert "was killed by SIGKILL: last output: two | three | four" in told.reasons[-1]
    assert told.reasons[-1].endswith("; it was started again 2 times, the limit (supervision.restarts)")


def test_a_stage_that_reports_what_it_would_meet_again_is_not_started_again(supervisor: Supervisor) -> None:
    told = keep(supervisor, "fail", restarts=2)
    assert told.kinds == ["stage_started", "stage_failed"]
    assert "ModelError: the model has 3 heads and 2 are needed (all it printed" in told.reasons[-1]


def test_a_stage_that_lost_its_store_is_started_again(supervisor: Supervisor) -> None:
    told = keep(supervisor, "lose_the_store_once")
    assert told.kinds == ["stage_started", "stage_restarted"]
    assert "StoreError: no answer from the store" in told.reasons[1]


def test_a_learner_that_another_one_retired_is_not_started_to_fight_it(supervisor: Supervisor) -> None:
    told = keep(supervisor, "retire")
    assert told.kinds == ["stage_started", "stage_failed"]
    assert "Retired: attempt 1 is retired by attempt 2; the newer learner goes on" in told.reasons[-1]


def test_a_stop_cuts_a_pause_short(supervisor: Supervisor, tmp_path: Path) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.1, lambda: (until((tmp_path / "deaths").exists, 20), time.sleep(0.5), stop.set()))
    timer.start()
    told = keep(supervisor, "die_twice", stop=stop, first_pause_seconds=600.0)
    timer.join()
    assert told.kinds == ["stage_started"]


def test_deaths_of_one_stage_are_not_counted_against_another(supervisor: Supervisor) -> None:
    rule = SupervisionSection(restarts=1, first_pause_seconds=0)
    supervision = Supervision(supervisor, rule)
    for example in ("lose_the_store_once", "die_once"):
        supervision.run(EXAMPLE, threading.Event(), env={"EXAMPLE": example})


def test_a_stopped_stage_is_told_by_name_with_its_last_word_and_started_again(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    with listening(tmp_path, stall=1.0) as watchdog:
        told = keep(supervisor, "stand_still_once", watchdog=watchdog)
    assert told.kinds == ["stage_started", "stage_stalled", "stage_restarted"]
    assert told.reasons[1].startswith(
        f"stage {EXAMPLE} said nothing for 1 s, more than supervision.stall_seconds; its last word: waiting for the engine "
        "to complete ticket 3 (all it printed: "
    )


def test_a_stage_that_waits_for_another_is_not_the_one_that_hangs(supervisor: Supervisor, tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(2.5, stop.set).start()
    with listening(tmp_path, stall=1.0, idle=0.1) as watchdog:
        told = keep(supervisor, "wait_for_another", stop=stop, watchdog=watchdog)
    assert told.kinds == ["stage_started"]


def test_beats_alone_are_no_progress(supervisor: Supervisor, tmp_path: Path) -> None:
    with listening(tmp_path) as watchdog:
        told = keep(supervisor, "work_in_vain", watchdog=watchdog, restarts=0)
    assert told.kinds == ["stage_started", "stage_stalled", "stage_failed"]
    assert (
        "works and came no further for 3600 s, more than stop.stall_seconds; its last word: at work" in told.reasons[1]
    )
    assert told.reasons[-1].endswith("; it is not started again (supervision.restarts = 0)")


def test_a_watchdog_that_cannot_hear_accuses_nobody(
    supervisor: Supervisor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def beats() -> list[dict[str, Any]]:
        raise StoreError("no answer")

    stop = threading.Event()
    threading.Timer(1.5, stop.set).start()
    with Watchdog(beats, stall_seconds=0.5, idle_seconds=60) as watchdog:
        told = keep(supervisor, "wait_for_another", stop=stop, watchdog=watchdog)
    assert told.kinds == ["stage_started"]
    assert [r.message for r in caplog.records if "cannot be heard" in r.message] == [
        "the stages cannot be heard, and none is taken to stand still meanwhile: StoreError: no answer"
    ]


def test_work_is_counted_from_the_first_word_to_the_last_move(supervisor: Supervisor, tmp_path: Path) -> None:
    stage = supervisor.start(EXAMPLE, {"EXAMPLE": "wait_for_another"})
    beat = tmp_path / "beat" / f"{EXAMPLE}.json"
    with listening(tmp_path, stall=1.0) as watchdog:
        watchdog.watch(stage)
        until(beat.exists, 30)
        time.sleep(3.0)
        worked = watchdog.worked_seconds(stage)
        assert worked < 1.0  # a busy machine reads the beats late
        # A beat of now that has waited for nothing: all since the first word was work.
        supervisor.stop(stage)
        beat.write_text(json.dumps({"stage": EXAMPLE, "waiting_for": None, "waited_seconds": 0.0, "at": 1.0}))
        until(lambda: watchdog.worked_seconds(stage) > worked + 0.5, 5)
