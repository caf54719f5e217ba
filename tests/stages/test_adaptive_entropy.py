"""A coefficient that moves with the entropy is part of a run: its plans, its records and its checkpoints hold it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from agrpo.audit import verify
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Done, Plan
from tests.stages.walk import LOCKSTEP, Walk, dones, walk

Begin = Callable[..., RunFolder]
BONUS: dict[str, Any] = {
    "loss": {"name": "clip"},
    "masks": {"top_entropy": 0.5},
    "entropy": {"coefficient": 0.05, "adaptive": True, "target": 100.0, "delta": 0.01, "maximum": 0.07},
}


def plans(folder: RunFolder, attempt: int = 0) -> list[Plan]:
    found = [folder.plan(StepKey(attempt, step)) for step in folder.planned_steps(attempt)]
    return [plan for plan in found if plan is not None]


def coefficients(found: list[Done] | list[Plan]) -> list[float | None]:
    return [one.entropy_coefficient for one in found]


@pytest.mark.spec("G-225", "G-251", "G-253")
def test_coefficient_moves_from_plan_to_plan_within_its_bounds(begin: Begin):
    folder = begin(**LOCKSTEP, **BONUS)
    walk(folder)
    assert coefficients(plans(folder)) == pytest.approx([0.05, 0.06, 0.07, 0.07])
    assert coefficients(dones(folder)) == pytest.approx([0.06, 0.07, 0.07, 0.07])
    for plan, done in zip(plans(folder), dones(folder), strict=True):
        assert done.metrics["entropy_coef"] == plan.entropy_coefficient
        assert done.metrics["policy_loss"] > done.metrics["loss"] == done.loss


@pytest.mark.spec("G-224", "G-251", "G-253")
def test_run_without_a_bonus_says_nothing_of_one(begin: Begin):
    folder = begin(stop={"max_steps": 1}, loss={"name": "clip"})
    walk(folder)
    (done,), (plan,) = dones(folder), plans(folder)
    assert plan.entropy_coefficient is None and done.entropy_coefficient is None
    assert not {"entropy_coef", "policy_loss", "kl", "cispo_clip_ratio", "vespo/phi_seq_mean"} & done.metrics.keys()


@pytest.mark.spec("G-226")
def test_coefficient_above_the_target_falls_and_is_not_applied(begin: Begin):
    section = {**BONUS["entropy"], "target": 0.0}
    folder = begin(**LOCKSTEP, stop={"max_steps": 2}, loss={"name": "clip"}, entropy=section)
    walk(folder)
    assert coefficients(plans(folder)) == pytest.approx([0.05, 0.04])
    assert all(done.metrics["policy_loss"] == done.loss for done in dones(folder))
    plain = begin("plain", **LOCKSTEP, stop={"max_steps": 2}, loss={"name": "clip"})
    walk(plain)
    assert [done.digest for done in dones(plain)] == [done.digest for done in dones(folder)]


@pytest.mark.spec("G-228")
@pytest.mark.parametrize(
    "checkpoints_every",
    [
        pytest.param(0, id="from a checkpoint"),
        pytest.param(1e9, id="from the beginning", marks=pytest.mark.slow),
    ],
)
def test_run_stopped_midway_goes_on_with_the_coefficient_it_had(begin: Begin, checkpoints_every: float):
    tables = {**LOCKSTEP, **BONUS, "checkpoint": {"every_seconds": checkpoints_every}}
    whole = begin("whole", **tables)
    walk(whole)
    folder = begin("halved", **tables)
    first = Walk(folder).start("generator", "scorer", "learner")
    first.until(lambda: len(folder.done_steps(0)) >= 2)
    first.stop.set()
    for thread in first.threads:
        thread.join(60)
    if checkpoints_every:
        forget_checkpoints(folder)
    walk(folder)
    found = {done.step: (done.digest, done.entropy_coefficient) for each in (0, 1) for done in dones(folder, each)}
    assert found == {done.step: (done.digest, done.entropy_coefficient) for done in dones(whole)}
    in_order = sorted([*plans(folder), *plans(folder, 1)], key=lambda plan: (plan.step, plan.attempt))
    for before, after in pairwise(in_order):
        assert after.step == before.step or after.entropy_coefficient == found[before.step][1]
    assert verify(folder, database=False).findings == []


def forget_checkpoints(folder: RunFolder) -> None:
    """All but that of the beginning, so that every step is replayed."""
    for name in folder.filesystem.list("checkpoints"):
        if not name.startswith("00000000"):
            folder.filesystem.delete(f"checkpoints/{name}")
