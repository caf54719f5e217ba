"""Mixed precision: what is held in float32, what is computed and published in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agrpo.config import ModelSection, OptimizerSection
from agrpo.packing.sequence import Sequence
from agrpo.policy import deltanet
from agrpo.policy.logprobs import hidden_states, next_token_logprobs, row_logprobs
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.policy.precision import computed_in
from agrpo.records.sample import Sample
from agrpo.stages.exporting import write_model
from agrpo.tensors import owned_tensors, published_tensors

MakeSamples = Callable[..., list[Sample]]


def mixed(tiny_model: Path) -> ModelSection:
    return ModelSection(path=str(tiny_model), mixed_precision="bfloat16")


@pytest.mark.spec("A-044")
def test_weights_gradients_and_moments_stay_in_float32(tiny_model: Path, make_samples: MakeSamples):
    policy = load_policy(mixed(tiny_model), "cpu")
    row = Sequence().lay_out(make_samples([9, 12, 5]))
    optimizer = build_optimizer(policy, OptimizerSection(learning_rate=1e-6))
    before = {name: tensor.clone() for name, tensor in owned_tensors(policy).items()}
    row_logprobs(policy, row, temperature=1.0).logprobs.sum().backward()
    assert {weight.grad.dtype for weight in policy.parameters()} == {torch.float32}
    optimizer.step()
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.float32}
    for name, tensor in owned_tensors(policy).items():
        assert tensor.dtype == torch.float32 and not torch.equal(tensor, before[name]), name


def test_arithmetic_is_done_in_bfloat16_and_near_that_of_float32(tiny_model: Path, make_samples: MakeSamples):
    policy, exact = load_policy(mixed(tiny_model), "cpu"), load_policy(ModelSection(path=str(tiny_model)), "cpu")
    row = Sequence().lay_out(make_samples([9, 12, 5]))
    assert hidden_states(policy, row.tokens, row.positions, row.parents).dtype == torch.bfloat16
    assert computed_in(policy) == torch.bfloat16 and computed_in(exact) == torch.float32
    reads = [row_logprobs(model, row, temperature=1.0) for model in (policy, exact)]
    for read in reads:
        read.logprobs.sum().backward()
    difference = (reads[0].logprobs - reads[1].logprobs).abs().max()
    assert reads[0].logprobs.dtype == torch.float32 and 0 < difference < 0.05
    for (name, weight), other in zip(policy.named_parameters(), exact.parameters(), strict=True):
        assert 0 < (weight.grad - other.grad).norm() <= 0.1 * other.grad.norm(), name


def test_what_is_published_is_rounded_once(tiny_model: Path):
    policy = load_policy(mixed(tiny_model), "cpu")
    owned = owned_tensors(policy)
    published = published_tensors(policy)
    assert published.keys() == owned.keys()
    assert all(torch.equal(tensor, owned[name].bfloat16()) for name, tensor in published.items())


@pytest.mark.spec("A-044")
def test_an_export_is_in_the_type_of_the_arithmetic(tiny_model: Path, tmp_path: Path):
    section = mixed(tiny_model)
    policy = load_policy(section, "cpu")
    write_model(tmp_path, policy, section)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert loaded.dtype == torch.bfloat16
    assert all(
        torch.equal(weight, policy.state_dict()[name].bfloat16()) for name, weight in loaded.state_dict().items()
    )
    ids = list(range(2, 12))
    logprobs = loaded(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
    assert (logprobs - next_token_logprobs(policy, ids)).abs().max() < 0.05


@pytest.mark.spec("A-043")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_auto_is_the_type_of_the_checkpoint(dtype: str, tiny_model: Path, tmp_path: Path):
    stored = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=getattr(torch, dtype))
    stored.save_pretrained(tmp_path)
    assert load_policy(ModelSection(path=str(tmp_path), dtype="auto"), "cpu").dtype == getattr(torch, dtype)


@pytest.mark.spec("A-045")
def test_a_type_alone_holds_weights_and_moments_too(tiny_model: Path, make_samples: MakeSamples):
    policy = load_policy(ModelSection(path=str(tiny_model), dtype="bfloat16"), "cpu")
    optimizer = build_optimizer(policy, OptimizerSection(learning_rate=1e-2))
    row_logprobs(policy, Sequence().lay_out(make_samples([9, 5])), temperature=1.0).logprobs.sum().backward()
    optimizer.step()
    assert {weight.dtype for weight in policy.parameters()} == {torch.bfloat16}
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.bfloat16}


def test_what_adds_up_states_is_computed_in_float32():
    page: Any = ModuleType("page")
    page.sums = page.convolves = lambda states: torch.is_autocast_enabled("cpu")
    deltanet._replace(page, "sums", page.sums, sums=True)
    deltanet._replace(page, "convolves", page.convolves)
    states = torch.ones(1)
    with torch.autocast("cpu", torch.bfloat16):
        assert (page.sums(states), page.convolves(states)) == (False, True)
    assert (page.sums(states), page.convolves(states)) == (False, False)
