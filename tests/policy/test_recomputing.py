"""Layers computed again in backward: the same gradients, bit for bit, out of less memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from agrpo.config import AdapterSection, ModelSection
from agrpo.errors import ModelError
from agrpo.packing.tree import Tree
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.model import load_policy
from agrpo.policy.recomputing import recompute_layers
from agrpo.policy.verifying import verify_packing
from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from tests.policy.conftest import MakeModel
from tests.policy.test_balance import branching, mixture, step
from tests.policy.vision_language import seeing

MakeSamples = Callable[..., list[Sample]]


def made(kind: str, make_model: MakeModel) -> PreTrainedModel:
    return seeing("Qwen3VL") if kind == "seeing" else mixture(kind) if "Config" in kind else make_model(kind)


def saved_bytes(model: PreTrainedModel, row: Row) -> int:
    """What a forward of the row keeps for backward, a tensor once; then the backward."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprobs = row_logprobs(model, row, temperature=1.0).logprobs
    logprobs.sum().backward()
    return sum(size for place, size in kept.items() if place not in weights)


@pytest.mark.spec("A-073")
@pytest.mark.parametrize(
    "kind", ["llama", "qwen3", "gpt2", "mistral", "gemma2", "seeing", "Qwen3MoeConfig", "Qwen3NextConfig"]
)
def test_gradients_are_the_same_bits(kind: str, make_model: MakeModel, make_samples: MakeSamples):
    row = Tree().lay_out(branching(make_samples))
    results: list[tuple[float, torch.Tensor]] = []
    for recomputed in (False, True):
        model = made(kind, make_model)
        if recomputed:
            recompute_layers(model)
        verify_packing(model)
        outcome, gradient = step(model, [row, row])
        results.append((outcome.loss, gradient))
    assert results[0][0] == results[1][0]
    assert results[0][1].norm() > 0 and torch.equal(results[0][1], results[1][1])


def test_much_less_is_kept_for_backward(make_model: MakeModel, make_samples: MakeSamples):
    row = Tree().lay_out(make_samples([60, 60, 60], trained=3))
    kept: list[int] = []
    for recomputed in (False, True):
        model = make_model("llama", num_hidden_layers=8)
        if recomputed:
            recompute_layers(model)
        verify_packing(model)
        kept.append(saved_bytes(model, row))
    assert kept[1] < kept[0] / 5, kept


def test_it_is_off_on_a_cpu_unless_it_is_asked_for(tiny_model: Path):
    def asked(**settings: bool) -> set[bool]:
        policy = load_policy(ModelSection(path=str(tiny_model), **settings), "cpu", adapter=AdapterSection(rank=2))
        assert not policy.training and not policy.model.layers[0].mlp.training
        return {layer.training and layer.gradient_checkpointing for layer in policy.model.layers}

    assert asked() == asked(activation_checkpointing=False) == {False}
    assert asked(activation_checkpointing=True) == {True}


def test_a_family_without_such_layers_is_refused_by_name(make_model: MakeModel):
    model = make_model("llama")
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ModelError, match=r"LlamaForCausalLM does not say.*model\.activation_checkpointing = false"):
        recompute_layers(model)
