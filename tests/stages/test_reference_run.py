"""Whole runs with a reference policy: what they record, and that one which follows is state as the policy is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agrpo.audit.replaying import replay
from agrpo.audit.verifying import verify
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.stages.recorder import record_once
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged
from tests.stages.walk import LOCKSTEP, Walk, dones, walk

FOLLOWING: dict[str, Any] = {
    "divergence": {"coefficient": 0.5, "sync_steps": 2, "mixup": 0.5},
    "optimizer": {"learning_rate": 1e-2},
    "stop": {"max_steps": 4},
}
ONE_CHECKPOINT = {"checkpoint": {"every_seconds": 1e6}}
"""Before the first step, and none until the end."""


def stopped_after(folder: RunFolder, steps: int) -> None:
    first = Walk(folder).start("generator", "scorer", "learner")
    first.until(lambda: len(folder.done_steps(0)) >= steps)
    first.stop.set()
    for thread in first.threads:
        thread.join(60)


def what_came_out(folder: RunFolder) -> dict[int, tuple[str, str | None, float]]:
    """By step: digests of policy and reference, and the divergence."""
    found = [done for attempt in (0, 1) for done in dones(folder, attempt)]
    return {done.step: (done.digest, done.reference_digest, done.metrics["kl"]) for done in found}


@pytest.fixture
def calm(begin: Any) -> RunFolder:
    folder = begin("calm", **FOLLOWING, **LOCKSTEP)
    walk(folder)
    return folder


def test_a_run_that_goes_on_with_its_reference_ends_as_one_that_was_never_stopped(begin: Any, calm: RunFolder):
    told = what_came_out(calm)
    assert [reference is not None for _, reference, _ in told.values()] == [False, True, False, True]
    assert told[1][2] < 1e-9 < told[2][2]
    loaded = begin("loaded", **FOLLOWING, **LOCKSTEP)
    stopped_after(loaded, 3)
    walk(loaded)
    assert what_came_out(loaded) == told
    record_once(loaded, Database(loaded.database))
    for folder in (calm, loaded):
        assert verify(folder).findings == []
    (row,) = query(loaded.database, "SELECT reference_digest FROM live_steps WHERE step = 4").to_pylist()
    assert row["reference_digest"] == told[4][1]


@pytest.mark.slow
def test_a_replay_moves_the_reference_as_the_run_did(begin: Any, calm: RunFolder):
    replayed = begin("replayed", **FOLLOWING, **ONE_CHECKPOINT, **LOCKSTEP)
    stopped_after(replayed, 3)
    for name in replayed.filesystem.list("checkpoints"):
        if not name.startswith("00000000"):
            replayed.filesystem.delete(f"checkpoints/{name}")
    walk(replayed)
    assert what_came_out(replayed) == what_came_out(calm)
    outcome = replay(calm, from_start=True)
    assert (outcome.difference, [step.step for step in outcome.steps]) == (None, [1, 2, 3, 4])


@pytest.mark.slow
def test_a_reference_that_replays_otherwise_is_told(calm: RunFolder):
    done = calm.done(StepKey(0, 2))
    assert done is not None
    calm.filesystem.delete("steps/000000/00000002.done.json")
    assert calm.write_done(replace(done, reference_digest="0" * 32))
    told = replay(calm, from_start=True).difference
    assert told is not None and f"in the reference policy, now {done.reference_digest}, recorded 000" in told


@pytest.mark.spec("G-002")
@pytest.mark.parametrize("adapter", [{}, pytest.param({"rank": 2, "alpha": 4.0}, marks=pytest.mark.slow)])
def test_an_asynchronous_run_measures_how_far_it_has_gone(begin: Any, adapter: dict[str, Any]):
    tables = {**FOLLOWING, "divergence": {"coefficient": 0.1}, "stop": {"max_steps": 3}}
    folder = begin(**tables, adapter=adapter, asynchronous={"max_staleness": 2})
    walk(folder)
    told = [(done.metrics["kl"], done.reference_digest) for done in dones(folder)]
    assert len(told) == 3 and told[0][0] < 1e-9 < told[-1][0]
    assert all(digest is None for _, digest in told)
    record_once(folder, Database(folder.database))
    assert verify(folder).findings == []
    assert_sql_says_what_was_logged(folder)


@pytest.mark.spec("G-004")
def test_without_a_penalty_a_run_says_nothing_of_a_reference(begin: Any):
    folder = begin(stop={"max_steps": 1}, **LOCKSTEP)
    walk(folder)
    (done,) = dones(folder)
    assert "kl" not in done.metrics and {sample.kl for sample in done.samples} == {None}
