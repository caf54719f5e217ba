"""The reference policy in one process: what it says, what it takes, and how it follows the policy."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from agrpo.aggregations import aggregations
from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.config.objective import DivergenceSection
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.packing.sequence import Sequence
from agrpo.policy.origin import Origin
from agrpo.policy.reference import Copy, WithoutAdapter
from agrpo.policy.trainee import Trainee, UpdateSettings, begin
from agrpo.policy.update import UpdateOutcome
from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.records.tokens import StepTotals
from agrpo.tensors import base_digest, text_tensors, trained_tensors

MakeSamples = Callable[..., list[Sample]]
WAYS: list[dict[str, Any]] = [{}, {"rank": 4}, {"rank": 4, "dora": True}]
"""All weights, and adapters."""


def trainee_of(
    folder: Path, adapter: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **divergence: Any
) -> Trainee:
    origin = Origin(
        model=ModelSection(path=str(folder), **(model or {})),
        adapter=AdapterSection(**(adapter or {})),
        optimizer=OptimizerSection(learning_rate=1e-2),
        divergence=DivergenceSection(**divergence),
        seed=0,
    )
    return begin(origin)


def step(trainee: Trainee, rows: list[Row], *, temperature: float = 1.0, **divergence: Any) -> UpdateOutcome:
    assert trainee.origin is not None
    settings = UpdateSettings(
        objective=Objective(
            loss=Clip(importance_min=0.0, importance_max=math.inf),
            aggregation=aggregations["token_mean"](),
            divergence=DivergenceSection(**divergence) if divergence else trainee.origin.divergence,
        ),
        totals=StepTotals(
            num_tokens=sum(row.num_trained for row in rows),
            num_samples=sum(row.num_samples for row in rows),
            max_completion_length=16,
        ),
        temperature=temperature,
        learning_rate=1e-2,
        max_grad_norm=1.0,
        seed=0,
    )
    return trainee.update(rows, settings, lambda: None)


def divergence_in(outcome: UpdateOutcome) -> np.ndarray:
    return np.concatenate([row.measures["divergence"] for row in outcome.rows if len(row.logprobs)])


@pytest.fixture
def rows(make_samples: MakeSamples) -> list[Row]:
    samples = make_samples([9, 12, 7, 8], trained=[4, 6, 3, 0])
    return [Sequence().lay_out(samples[:2]), Sequence().lay_out(samples[2:3]), Sequence().lay_out(samples[3:])]


def num_models() -> int:
    gc.collect()
    return sum(issubclass(type(found), PreTrainedModel) and "lm_head" in found._modules for found in gc.get_objects())


@pytest.mark.spec("G-004")
@pytest.mark.parametrize(
    ("adapter", "coefficient", "held"),
    [({}, 0.0, 1), ({}, 0.1, 2), ({"rank": 4}, 0.0, 1), ({"rank": 4}, 0.1, 1)],
)
def test_a_second_model_is_held_with_a_penalty_and_without_an_adapter(
    tiny_model: Path, adapter: dict[str, Any], coefficient: float, held: int
):
    before = num_models()
    trainee = trainee_of(tiny_model, adapter, coefficient=coefficient)
    assert num_models() - before == held
    assert (trainee.reference is None) == (coefficient == 0)


@pytest.mark.spec("G-137")
@pytest.mark.parametrize("adapter", WAYS)
def test_divergence_is_measured_from_the_weights_that_training_began_with(
    tiny_model: Path, rows: list[Row], adapter: dict[str, Any]
):
    trainee = trainee_of(tiny_model, adapter, coefficient=0.1)
    outcomes = [step(trainee, rows) for _ in range(3)]
    first, *later = [np.concatenate([row.logprobs for row in outcome.rows]) for outcome in outcomes]
    assert np.abs(divergence_in(outcomes[0])).max() < 1e-9
    for logprobs, outcome in zip(later, outcomes[1:], strict=True):
        logs = first.astype(np.float64) - logprobs
        assert divergence_in(outcome) == pytest.approx(np.exp(logs) - logs - 1, abs=1e-6)
    assert divergence_in(outcomes[2]).mean() > 1e-4
    kind = WithoutAdapter if adapter else Copy
    assert isinstance(trainee.reference, kind) and trainee.reference_state is None


@pytest.mark.parametrize("adapter", WAYS[:2])
@pytest.mark.parametrize("model", [{}, {"mixed_precision": "bfloat16"}, {"activation_checkpointing": True}])
def test_an_unchanged_policy_is_at_no_distance_whatever_it_computes_in(
    tiny_model: Path, rows: list[Row], model: dict[str, Any], adapter: dict[str, Any]
):
    candidates = [sorted({int(target), 1, 2, 3}) for target in rows[0].targets]
    trainee = trainee_of(tiny_model, adapter, model, coefficient=0.1)
    outcome = step(trainee, [replace(rows[0], candidates=candidates)], temperature=0.5)
    assert (divergence_in(outcome) == 0).all() and outcome.grad_norm > 0
    assert (divergence_in(step(trainee, [rows[0]])) > 0).any()


def test_switching_the_adapter_off_leaves_its_training_and_its_base_alone(tiny_model: Path, rows: list[Row]):
    with_penalty, without = (trainee_of(tiny_model, {"rank": 4}, coefficient=value) for value in (1e-9, 0.0))
    base = base_digest(with_penalty.model)
    for _ in range(3):
        told, expected = step(with_penalty, rows), step(without, rows)
        assert told.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4) and told.grad_norm > 0
    assert base_digest(with_penalty.model) == base
    found, wanted = (trained_tensors(trainee.model) for trainee in (with_penalty, without))
    assert all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


@pytest.mark.spec("K26")
@pytest.mark.parametrize("adapter", WAYS[:2])
def test_groups_of_equal_rewards_pull_towards_the_reference_and_do_nothing_without_one(
    tiny_model: Path, rows: list[Row], adapter: dict[str, Any]
):
    trainee = trainee_of(tiny_model, adapter, coefficient=0.5)
    equal = [replace(row, advantages=np.zeros_like(row.advantages)) for row in rows]
    step(trainee, rows)
    assert step(trainee, equal, coefficient=0.0).grad_norm == 0
    away = step(trainee, equal)
    assert away.grad_norm > 0
    *_, back = [step(trainee, equal) for _ in range(8)]
    assert divergence_in(back).mean() < 0.5 * divergence_in(away).mean()


@pytest.mark.parametrize("mixup", [0.25, 1.0])
def test_a_reference_that_follows_becomes_a_mixture(tiny_model: Path, rows: list[Row], mixup: float):
    trainee = trainee_of(tiny_model, coefficient=0.1, sync_steps=1, mixup=mixup)
    state = trainee.reference_state
    assert state is not None
    before = {name: tensor.clone() for name, tensor in state.items()}
    step(trainee, rows)
    trainee.sync_reference(mixup)
    for name, weight in text_tensors(trainee.model).items():
        assert torch.allclose(state[name], mixup * weight + (1 - mixup) * before[name], atol=1e-7)
        assert not torch.equal(state[name], before[name])


def test_beginning_again_begins_with_the_reference_too(tiny_model: Path, rows: list[Row]):
    trainee = trainee_of(tiny_model, coefficient=0.1, sync_steps=1)
    first = step(trainee, rows)
    trainee.sync_reference(1.0)
    trainee.begin_again()
    again = step(trainee, rows)
    assert (again.loss, again.grad_norm) == (first.loss, first.grad_norm)
    assert (divergence_in(again) == 0).all()
