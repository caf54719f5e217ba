from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from agrpo.aggregations import aggregations
from agrpo.config import OptimizerSection
from agrpo.errors import ModelError
from agrpo.losses import Loss, losses
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.packing.sequence import Sequence
from agrpo.policy.determinism import make_deterministic
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.policy.optimizer import build_optimizer
from agrpo.policy.update import UpdateOutcome, update
from agrpo.policy.verifying import verify_packing
from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.records.tokens import StepTotals
from agrpo.registry import knobs_of

MakeModel = Callable[..., PreTrainedModel]
MakeSamples = Callable[..., list[Sample]]
OPEN = Clip(importance_min=0.0, importance_max=math.inf)
EVERY_LOSS = pytest.mark.parametrize("loss", losses.names())
SECTION = OptimizerSection(learning_rate=1e-3)


def rows_of(samples: list[Sample], split: list[list[int]]) -> list[Row]:
    return [Sequence().lay_out([samples[number] for number in row]) for row in split]


def step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: list[Row],
    aggregation: str = "token_mean",
    *,
    loss: Loss = OPEN,
    rate: float = 1e-3,
    max_grad_norm: float = math.inf,
) -> UpdateOutcome:
    totals = StepTotals(
        num_tokens=sum(row.num_trained for row in rows),
        num_samples=sum(row.num_samples for row in rows),
        max_completion_length=16,
    )
    return update(
        model,
        optimizer,
        rows,
        objective=Objective(loss=loss, aggregation=aggregations.build(aggregation, {})),
        totals=totals,
        temperature=1.0,
        learning_rate=rate,
        max_grad_norm=max_grad_norm,
    )


def gradient_of(
    model: PreTrainedModel, rows: list[Row], aggregation: str, loss: str = "clip"
) -> tuple[UpdateOutcome, torch.Tensor]:
    """A plain step of rate 1 moves each weight by its gradient."""
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    band = {"importance_min": 0.3, "importance_max": 30.0}
    chosen = losses.build(loss, band if band.keys() <= set(knobs_of(losses[loss])) else {})
    outcome = step(model, torch.optim.SGD(model.parameters()), rows, aggregation, rate=1.0, loss=chosen)
    return outcome, before - torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.spec("K29", "A-143")
@pytest.mark.parametrize("aggregation", aggregations.names())
@EVERY_LOSS
def test_loss_gradient_and_measures_do_not_depend_on_the_split(
    loss: str, aggregation: str, make_model: MakeModel, make_samples: MakeSamples
):
    samples = make_samples([5, 11], trained=[2, 6])
    results: list[tuple[UpdateOutcome, torch.Tensor]] = []
    for split in ([[0, 1]], [[0], [1]], [[1], [0]]):
        model = make_model("qwen3").double()
        verify_packing(model)
        results.append(gradient_of(model, rows_of(samples, split), aggregation, loss))
    whole, gradient = results[0]
    for outcome, other in results[1:]:
        assert outcome.loss == pytest.approx(whole.loss, rel=1e-6)
        assert outcome.grad_norm == pytest.approx(whole.grad_norm, rel=1e-6)
        assert (other - gradient).norm() <= 1e-6 * gradient.norm()
        for name in whole.rows[0].measures:
            ours, theirs = (
                np.sort(np.concatenate([row.measures[name] for row in result.rows])) for result in (outcome, whole)
            )
            assert np.allclose(ours, theirs, rtol=1e-6)


@pytest.mark.spec("K28")
@EVERY_LOSS
def test_row_without_a_trained_token_changes_nothing(loss: str, make_model: MakeModel, make_samples: MakeSamples):
    samples = make_samples([5, 7, 6], trained=[2, 0, 3])
    gradients: list[torch.Tensor] = []
    for split in ([[0], [1], [2]], [[0], [2]]):
        model = make_model("llama")
        verify_packing(model)
        gradients.append(gradient_of(model, rows_of(samples, split), "token_mean", loss)[1])
    assert gradients[0].norm() > 0 and torch.equal(gradients[0], gradients[1])


@pytest.mark.spec("K28")
def test_step_without_a_trained_token_is_no_step(make_model: MakeModel, make_samples: MakeSamples):
    model = make_model("llama")
    verify_packing(model)
    with pytest.raises(AssertionError, match="must be skipped"):
        step(model, build_optimizer(model, SECTION), rows_of(make_samples([5, 7], trained=0), [[0, 1]]))


def test_outcome_holds_what_the_policy_said_before_the_step(make_model: MakeModel, make_samples: MakeSamples):
    model = make_model("llama")
    verify_packing(model)
    row = rows_of(make_samples([5, 7]), [[0, 1]])[0]
    optimizer = build_optimizer(model, SECTION)
    first = step(model, optimizer, [row])
    ratio = np.exp(first.rows[0].logprobs - row.sampler_logprobs)
    assert np.allclose(first.rows[0].measures["importance_ratio"], ratio, rtol=1e-5)
    assert first.rows[0].entropy.shape == (6,) and (first.rows[0].entropy > 0).all()
    assert first.loss == pytest.approx(
        sum(_clipped(r, a) for r, a in zip(ratio, row.advantages, strict=True)) / 6, rel=1e-4
    )
    assert not np.array_equal(step(model, optimizer, [row]).rows[0].logprobs, first.rows[0].logprobs)


def _clipped(ratio: float, advantage: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)


def test_gradient_is_clipped_and_its_norm_is_told_before_clipping(make_model: MakeModel, make_samples: MakeSamples):
    model, rows = make_model("llama"), rows_of(make_samples([5, 7]), [[0, 1]])
    verify_packing(model)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    outcome = step(model, torch.optim.SGD(model.parameters()), rows, rate=1.0, max_grad_norm=0.01)
    moved = (torch.nn.utils.parameters_to_vector(model.parameters()).detach() - before).norm().item()
    assert outcome.grad_norm > 0.02
    assert moved == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_step_that_is_not_finite_is_refused_and_changes_nothing(
    bad: float, make_model: MakeModel, make_samples: MakeSamples
):
    model = make_model("llama")
    verify_packing(model)
    optimizer = build_optimizer(model, SECTION)
    good, odd = rows_of(make_samples([5, 7]), [[0], [1]])
    step(model, optimizer, [good])
    weights = digest_of(tensor_digests(model))
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    odd = replace(odd, advantages=np.full(3, bad, np.float32))
    with pytest.raises(ModelError, match=r"loss is (nan|-?inf) \(first in row 1 of 2\).*optimizer\.learning_rate"):
        step(model, optimizer, [good, odd])
    assert digest_of(tensor_digests(model)) == weights
    assert all(
        torch.equal(state["exp_avg"], kept) for state, kept in zip(optimizer.state.values(), moments, strict=True)
    )
    assert all(weight.grad is None for weight in model.parameters())


def train(model: PreTrainedModel, make_samples: MakeSamples, steps: int) -> str:
    verify_packing(model)
    optimizer = build_optimizer(model, replace(SECTION, weight_decay=0.01))
    for number in range(steps):
        samples = make_samples([9, 14, 9, 6, 14], seed=number)
        rows = rows_of(samples, Sequence().place(samples, 30))
        step(model, optimizer, rows, max_grad_norm=1.0)
    return digest_of(tensor_digests(model))


def test_twelve_steps_twice_give_the_same_bits(make_model: MakeModel, make_samples: MakeSamples):
    try:
        make_deterministic(threads=1)
        digests = [train(make_model("qwen3"), make_samples, 12) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert digests[0] == digests[1]
    assert digests[0] != train(make_model("qwen3"), make_samples, 11)
