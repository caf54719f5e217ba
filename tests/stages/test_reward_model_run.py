"""Whole runs that are rewarded by a classifier, whose process is killed in the middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import resolve
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.runs import prepare
from tests.rewards.worlds import descendants, lives
from tests.stages.walk import LOCKSTEP, Walk, dones, settings

STAGES = ("generator", "scorer", "learner")
NUM_GROUPS = 8


def begun(place: Path, model: Path, prompts: Path, classifier: Path) -> RunFolder:
    """A lockstep run of four steps and two rewards."""
    tree: dict[str, Any] = settings(model, prompts, place, **LOCKSTEP)
    tree["stop"]["stall_seconds"] = 100
    knobs = {"path": str(classifier), "batch_size": 2}
    tree["rewards"].append({"name": "reward_model", "weight": 0.1, "timeout_seconds": 60, "settings": knobs})
    return prepare(resolve(values=tree), folder=str(place / "run"))


def judges() -> set[int]:
    """Processes of reward models that this one has started and that live."""
    command = b"agrpo.rewards.sandbox.resident"
    return {pid for pid in descendants(os.getpid()) if command in Path(f"/proc/{pid}/cmdline").read_bytes()}


def scores(folder: RunFolder) -> list[tuple[list[float | None], list[str | None]]]:
    """What the reward model said of each group, and why where it said nothing."""
    found = [scored_from_arrow(folder.scored.demand(n), folder.scored.key(n)) for n in folder.scored.numbers()]
    (*said,) = [next(each for each in group.scores if each.reward == "reward_model") for group in found]
    return [(each.values, each.errors) for each in said]


@pytest.mark.slow
def test_a_run_whose_reward_model_is_killed_ends_with_the_weights_of_one_that_was_not(
    tiny_model: Path, prompts: Path, tiny_classifier: Path, tmp_path: Path
):
    left_alone, killed = (begun(tmp_path / name, tiny_model, prompts, tiny_classifier) for name in ("one", "other"))
    Walk(left_alone).start(*STAGES).join()
    run = Walk(killed).start(*STAGES)
    run.until(lambda: len(killed.scored.numbers()) >= NUM_GROUPS // 2)
    (first,) = judges()
    os.kill(first, signal.SIGSTOP)  # the next groups wait in it
    scored = len(killed.scored.numbers())
    run.until(lambda: len(killed.groups.numbers()) > scored or len(dones(killed)) == NUM_GROUPS // 2)
    os.kill(first, signal.SIGKILL)
    run.join()
    assert not lives(first) and judges() == set()
    assert len(scores(killed)) == NUM_GROUPS and scores(killed) == scores(left_alone)
    assert all(error is None for _, errors in scores(killed) for error in errors)
    assert [done.digest for done in dones(killed)] == [done.digest for done in dones(left_alone)]
