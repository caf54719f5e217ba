"""The balancing loss of experts: transformers' own value, whatever the split into rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from agrpo.aggregations import aggregations
from agrpo.errors import ConfigError
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.packing.sequence import Sequence
from agrpo.packing.tree import Tree
from agrpo.policy.balance import samples_through, settle_balance
from agrpo.policy.update import UpdateOutcome, update
from agrpo.policy.verifying import verify_packing
from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.records.tokens import StepTotals
from tests.policy.conftest import GROUPED, MakeModel

MakeSamples = Callable[..., list[Sample]]
EXPERTS = GROUPED | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {f"linear_{what}": size for what, size in {"num_key_heads": 2, "num_value_heads": 4}.items()}
LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "shared_expert_intermediate_size": 16}
MIXTURES: dict[str, dict[str, Any]] = {
    "Qwen3MoeConfig": EXPERTS,
    "MixtralConfig": GROUPED | {"num_local_experts": 4},
    "Qwen3NextConfig": EXPERTS | LINEAR | {"layer_types": ["linear_attention", "full_attention"]},
}


ROUNDING = {"Qwen3MoeConfig": 1e-6, "MixtralConfig": 1e-6, "Qwen3NextConfig": 1e-4}
"""Linear attention computes in fp32, whatever the type of the weights."""


def mixture(name: str = "Qwen3MoeConfig", coefficient: float | None = 0.5, **settings: Any) -> PreTrainedModel:
    """In fp64, where the order of rows rounds nothing that counts, if the family's layers let it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, name)(**(MIXTURES[name] | settings))
        model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    if ROUNDING[name] < 1e-4:
        model.double()
    settle_balance(model, coefficient)
    return model


def step(model: PreTrainedModel, rows: list[Row]) -> tuple[UpdateOutcome, torch.Tensor]:
    """A plain step of rate 1, and the gradient by which it moved the weights."""
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    outcome = update(
        model,
        torch.optim.SGD(model.parameters()),
        rows,
        objective=Objective(
            loss=Clip(importance_min=0.0, importance_max=math.inf), aggregation=aggregations.build("token_mean", {})
        ),
        totals=StepTotals(
            num_tokens=sum(row.num_trained for row in rows),
            num_samples=sum(row.num_samples for row in rows),
            max_completion_length=16,
        ),
        temperature=1.0,
        learning_rate=1.0,
        max_grad_norm=math.inf,
    )
    return outcome, before - torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.spec("A-144", "A-301")
@pytest.mark.parametrize("name", MIXTURES)
def test_a_batch_of_equal_samples_has_the_loss_and_gradient_that_transformers_gives_it(
    name: str, make_samples: MakeSamples
):
    samples, expected, model, without = make_samples([9, 9, 9]), mixture(name), mixture(name), mixture(name, 0.0)
    inputs = torch.tensor([sample.sequence.tokens[:-1] for sample in samples])
    logits = expected(inputs, use_cache=False, output_router_logits=True).router_logits
    loss = load_balancing_loss_func(logits, 4, 2)
    (0.5 * loss).backward()
    for each in (model, without):
        verify_packing(each)
    row = Sequence().lay_out(samples)
    (balanced, gradient), (plain, other) = step(model, [row]), step(without, [row])
    assert balanced.aux_loss == pytest.approx(loss.item(), abs=ROUNDING[name]) and plain.aux_loss is None
    assert balanced.loss - plain.loss == pytest.approx(0.5 * loss.item(), abs=ROUNDING[name])
    own = [weight.grad if weight.grad is not None else torch.zeros_like(weight) for weight in expected.parameters()]
    assert (gradient - other - torch.nn.utils.parameters_to_vector(own)).abs().max() <= ROUNDING[name]


def branching(make_samples: MakeSamples) -> list[Sample]:
    """Four samples of unequal length: two share all but the last three tokens, a third one five."""
    made = make_samples([9, 9, 12, 5], trained=3)
    first = made[0].sequence.tokens
    made[1].sequence.tokens[:6] = first[:6]
    made[2].sequence.tokens[:5] = first[:5]
    return made


@pytest.mark.spec("K29", "A-144")
def test_loss_and_gradient_do_not_depend_on_rows_nor_on_what_they_share(make_samples: MakeSamples):
    samples, tree, line = branching(make_samples), Tree(), Sequence()
    splits = [[line.lay_out(samples)], [line.lay_out([sample]) for sample in samples], [tree.lay_out(samples)]]
    splits.append([tree.lay_out(samples[2:]), tree.lay_out(samples[:2])])
    results: list[tuple[UpdateOutcome, torch.Tensor]] = []
    for rows in splits:
        model = mixture()
        verify_packing(model)
        results.append(step(model, rows))
    assert splits[2][0].num_tokens < splits[0][0].num_tokens
    for outcome, gradient in results[1:]:
        assert outcome.aux_loss == pytest.approx(results[0][0].aux_loss, rel=1e-6)
        assert outcome.loss == pytest.approx(results[0][0].loss, rel=1e-6)
        assert (gradient - results[0][1]).norm() <= 1e-6 * gradient.norm()


def test_a_token_counts_once_for_every_sample_that_is_predicted_through_it(make_samples: MakeSamples):
    samples = branching(make_samples)
    alone = [samples_through(Sequence().lay_out([sample])).sum() for sample in samples]
    assert alone == [8, 8, 11, 4]
    shared = samples_through(Tree().lay_out(samples[:3]))
    assert shared[:5].tolist() == [3] * 5 and sorted(shared[5:])[::-1][:2] == [2, 1] and shared.sum() == 27


def test_the_weight_is_the_models_own_unless_it_is_set(make_samples: MakeSamples):
    for coefficient, expected in ((None, 0.001), (0.25, 0.25), (0.0, 0.0)):
        assert mixture(coefficient=coefficient).config.router_aux_loss_coef == expected


@pytest.mark.spec("A-048")
@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_a_weight_for_a_model_without_experts_is_refused_by_name(make_model: MakeModel, coefficient: float):
    with pytest.raises(ValueError, match=r"model\.router_aux_loss_coef = 0.*Qwen3ForCausalLM has no routers") as caught:
        settle_balance(make_model("qwen3"), coefficient)
    assert isinstance(caught.value, ConfigError)
    settle_balance(make_model("qwen3"), None)
    with pytest.raises(ConfigError, match="DeepseekV3ForCausalLM has no balancing loss in transformers; leave it out"):
        settle_balance(make_model("deepseek_v3"), coefficient)
