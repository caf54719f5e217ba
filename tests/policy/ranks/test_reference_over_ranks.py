"""The reference policy shared out over processes, as the policy is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from agrpo.config.objective import DivergenceSection
from agrpo.policy.origin import Origin
from agrpo.policy.reference import Copy
from agrpo.policy.trainee import Trainee, begin
from agrpo.policy.update import UpdateOutcome
from agrpo.stages.ranks import Recruiter
from tests.policy.ranks.conftest import numbers_of_step, rows_of_step

FOLLOWING = DivergenceSection(coefficient=0.5, sync_steps=2, mixup=0.25)
STAYING = DivergenceSection(coefficient=0.5)


def trained(trainee: Trainee, divergence: DivergenceSection, steps: range) -> list[UpdateOutcome]:
    outcomes: list[UpdateOutcome] = []
    for number in steps:
        settings = numbers_of_step(number)
        settings = replace(settings, objective=replace(settings.objective, divergence=divergence))
        outcomes.append(trainee.update(rows_of_step(number), settings, lambda: None))
        if divergence.syncs_after(number):
            trainee.sync_reference(divergence.mixup)
    return outcomes


def reference_of(trainee: Trainee) -> dict[str, torch.Tensor]:
    state = trainee.reference_state
    assert state is not None
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("adapter", "divergence"), [({}, FOLLOWING), ({"rank": 4, "alpha": 8.0}, STAYING)], ids=["copy", "adapter"]
)
def test_a_penalty_does_not_depend_on_the_number_of_processes(
    recruiter: Recruiter, origin_of: Callable[..., Origin], adapter: dict[str, Any], divergence: DivergenceSection
):
    origin = replace(origin_of(**adapter), divergence=divergence)
    alone = begin(origin)
    expected = trained(alone, divergence, range(1, 4))
    shared = begin(origin, recruiter.form(2), recruiter)
    found = trained(shared, divergence, range(1, 4))
    for one, two in zip(expected, found, strict=True):
        assert two.loss == pytest.approx(one.loss, abs=1e-6)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    assert expected[-1].rows[0].measures["divergence"].mean() > 1e-6
    if divergence.sync_steps is not None:
        theirs = reference_of(shared)
        for name, weight in reference_of(alone).items():
            torch.testing.assert_close(theirs[name], weight, rtol=0, atol=2e-6)


def test_a_rank_holds_its_share_of_the_reference_and_no_gradient(
    recruiter: Recruiter, origin_of: Callable[..., Origin]
):
    shared = begin(replace(origin_of(), divergence=STAYING), recruiter.form(2), recruiter)
    trained(shared, STAYING, range(1, 3))
    assert isinstance(shared.reference, Copy) and shared.reference_state is None
    held = sum(weight.to_local().numel() for weight in shared.reference.model.parameters())  # type: ignore[operator]
    whole = sum(weight.numel() for weight in shared.reference.model.parameters())
    assert held < 0.6 * whole
    assert all(weight.grad is None for weight in shared.reference.model.parameters())


@pytest.mark.slow
def test_a_reference_that_follows_goes_to_other_processes_bit_by_bit(
    recruiter: Recruiter, origin_of: Callable[..., Origin]
):
    trainee = begin(replace(origin_of(), divergence=FOLLOWING), recruiter.form(1), recruiter)
    began = reference_of(trainee)
    trained(trainee, FOLLOWING, range(1, 3))
    before = reference_of(trainee)
    assert not all(torch.equal(before[name], began[name]) for name in began)
    for size in (2, 1):
        trainee.become(size)
        after = reference_of(trainee)
        assert (trainee.group.size, after.keys()) == (size, before.keys())
        assert all(torch.equal(after[name], before[name]) for name in before)
