"""A run whose learner is two processes, as its user has it, under three blows: the rank, the learner, the flow."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agrpo.audit.verifying import verify
from agrpo.stages.reaper import descendants
from tests.chaos.balance import history, last_tensors, told
from tests.chaos.running import Running
from tests.chaos.tiny import begin
from tests.processes import until

STEPS = 6
SHARED = {"learner_processes": 2, "generators": 1, "scorers": 1}


def rank_of(learner: int) -> int | None:
    """The learner's further rank, once it lives."""
    found = [pid for pid in descendants({learner}) if b"rank" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    return found[0] if found else None


def is_gone(pid: int) -> bool:
    """Not there, or dead and not yet reaped."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.long
def test_a_shared_learner_under_blows_is_bit_for_bit_the_one_it_would_have_been(
    api: str, tiny_model: Path, tmp_path: Path
):
    place = tmp_path / "calm"
    calm = begin(tiny_model, place, "lockstep", steps=STEPS, workers=SHARED)
    with Running(calm, place / "log") as running:
        running.go_on()
        until(lambda: running.over, 120)
    place = tmp_path / "struck"
    struck = begin(tiny_model, place, "lockstep", steps=STEPS, workers=SHARED)
    with Running(struck, place / "log") as running:
        running.go_on()
        for number, blow in enumerate(("rank", "learner", "flow"), start=1):
            until(lambda number=number: len(history(struck)) >= number, 120)
            learner = running.stages()["learner"]
            rank = rank_of(learner)
            assert rank is not None and running.flow is not None
            os.kill({"rank": rank, "learner": learner, "flow": running.flow.pid}[blow], signal.SIGKILL)
            until(lambda pids=(rank, learner): all(is_gone(pid) for pid in pids), 20)
            if blow == "flow":
                running.flow.wait()
                running.go_on()
        until(lambda: running.over, 120)
    assert told(struck) == told(calm)
    assert last_tensors(struck) == last_tensors(calm)
    assert verify(struck).findings == []
    reasons = [
        event.payload["reason"]
        for stream in struck.event_streams()
        for number in struck.event_numbers(stream)
        if (event := struck.event(stream, number)) is not None and event.kind == "stage_restarted"
    ]
    assert any("rank 1 of 2 of the learner" in reason and "was killed by SIGKILL" in reason for reason in reasons)
