"""Adapters in training: what is trained, where it begins, and that packed training is plain PEFT's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from peft.tuners.lora import LoraModel
from transformers import PreTrainedModel

from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.errors import ConfigError
from agrpo.packing.sequence import Sequence
from agrpo.policy.adapter import add_adapter, targeted
from agrpo.policy.digest import tensor_digests
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.policy.verifying import verify_packing
from agrpo.records.sample import Sample
from agrpo.tensors import base_digest, exported_state, merged_tensors, owned_tensors, trained_tensors
from tests.policy.conftest import MakeModel

MakeSamples = Callable[..., list[Sample]]


def adapted(make_model: MakeModel, family: str = "qwen3", dtype: torch.dtype = torch.float32, **settings: Any):
    model = make_model(family).to(dtype)
    add_adapter(model, AdapterSection(**{"rank": 4, "alpha": 8.0, **settings}), seed=3)
    return model


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """The model after some training of its adapter."""
    generator = torch.Generator().manual_seed(1)
    for tensor in trained_tensors(model).values():
        tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return model


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "phi", "gemma2"])
@pytest.mark.parametrize("dora", [False, True])
def test_an_adapter_that_was_not_trained_changes_nothing(make_model: MakeModel, family: str, dora: bool):
    plain, model = make_model(family), adapted(make_model, family, dora=dora)
    tokens = torch.arange(1, 9)[None]
    difference = (model(tokens).logits - plain(tokens).logits).abs().max()
    assert difference <= (1e-5 if dora else 0.0)
    merged = merged_tensors(model)
    assert merged.keys() == owned_tensors(plain).keys()
    assert all(torch.allclose(tensor, merged[name], atol=1e-6) for name, tensor in owned_tensors(plain).items())


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "phi", "gemma2"])
@pytest.mark.parametrize("dora", [False, True])
def test_merged_weights_give_the_log_probs_of_the_model_with_its_adapter(
    make_model: MakeModel, make_samples: MakeSamples, family: str, dora: bool
):
    model, plain = moved(adapted(make_model, family, dora=dora)), make_model(family)
    plain.load_state_dict(exported_state(model))
    samples = make_samples([9, 12, 5])
    row = Sequence().lay_out(samples)
    verify_packing(model)
    verify_packing(plain)
    with torch.no_grad():
        found, expected = (row_logprobs(each, row, temperature=1.0).logprobs for each in (plain, model))
    assert (found - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dora", [False, True])
def test_merged_weights_are_those_that_peft_merges(make_model: MakeModel, dtype: torch.dtype, dora: bool):
    model = moved(adapted(make_model, dtype=dtype, dora=dora))
    peft = as_peft(make_model("qwen3").to(dtype), model, use_dora=dora).merge_and_unload()
    found, expected = merged_tensors(model), owned_tensors(peft)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == dtype
        assert torch.allclose(tensor.float(), expected[name].float(), atol=0, rtol=1e-6 if dora else 0.0), name


def as_peft(base: PreTrainedModel, model: PreTrainedModel, **settings: Any) -> Any:
    """A model of PEFT's own making with the same adapter."""
    ends = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    peft: Any = LoraModel(base, LoraConfig(r=4, lora_alpha=8, target_modules=ends, **settings), "default")
    own = dict(base.named_parameters())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                own[name].data = weight.detach().clone()
    return peft


def test_gradients_are_those_of_plain_peft(make_model: MakeModel, make_samples: MakeSamples):
    model = moved(adapted(make_model))
    peft = as_peft(make_model("qwen3"), model)
    samples = make_samples([9, 12, 5], trained=4)
    row = Sequence().lay_out(samples)
    verify_packing(model)
    weights = torch.randn(row.num_samples * 4, generator=torch.Generator().manual_seed(2))
    (weights * row_logprobs(model, row, temperature=1.0).logprobs).sum().backward()
    for number, sample in enumerate(samples):
        tokens = torch.tensor([sample.sequence.tokens])
        logprobs = peft(input_ids=tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[-4:, 0]
        (weights[4 * number : 4 * number + 4] * logprobs).sum().backward()
    own = dict(peft.model.named_parameters())
    for name, weight in model.named_parameters():
        assert weight.requires_grad == (".lora_" in name)
        if weight.requires_grad:
            assert torch.allclose(weight.grad, own[name].grad, rtol=1e-4, atol=1e-6), name


@pytest.mark.spec("A-035")
def test_only_the_adapter_is_trained_and_in_float32(make_model: MakeModel):
    model = adapted(make_model, dtype=torch.bfloat16)
    before, base = tensor_digests(model), base_digest(model)
    optimizer = build_optimizer(model, OptimizerSection(learning_rate=1e-2))
    assert {weight.dtype for group in optimizer.param_groups for weight in group["params"]} == {torch.float32}
    for _ in range(2):
        model(torch.arange(1, 9)[None]).logits.float().logsumexp(-1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(before[name] != digest for name, digest in tensor_digests(model).items())
    plain = owned_tensors(make_model("qwen3").to(torch.bfloat16))
    left = {
        name.replace(".base_layer", ""): weight for name, weight in model.named_parameters() if ".lora_" not in name
    }
    assert base_digest(model) == base
    assert all(torch.equal(weight, plain[name]) for name, weight in left.items())


def test_an_adapter_is_a_function_of_the_seed(tiny_model: Path):
    def digests(seed: int) -> dict[str, str]:
        torch.rand(seed + 1)  # whatever was drawn before
        return tensor_digests(
            load_policy(ModelSection(path=str(tiny_model)), "cpu", adapter=AdapterSection(rank=2), seed=seed)
        )

    assert digests(1) == digests(1)
    first, second = digests(1), digests(2)
    assert all((first[name] == second[name]) == ("lora_B" in name) for name in first)


def test_names_of_targets_mean_layers_by_their_end(make_model: MakeModel):
    model = make_model("qwen3")
    assert targeted(model, ["v_proj", "model.layers.1.mlp.up_proj"]) == [
        "model.layers.0.self_attn.v_proj",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.mlp.up_proj",
    ]
    found = targeted(model, "all-linear")
    assert len(found) == 14 and not any("lm_head" in name or "embed" in name for name in found)


@pytest.mark.spec("A-016")
@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["lm_head"], '"lm_head" is the output head of Qwen3ForCausalLM'),
        (["embed_tokens"], '"embed_tokens" means model.embed_tokens, which is no linear layer'),
        (["q_proj", "w1"], '"w1" names no layer of Qwen3ForCausalLM; linear ones are: down_proj, gate_proj'),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused(make_model: MakeModel, targets: list[str], expected: str):
    with pytest.raises(ValueError, match=expected) as caught:
        targeted(make_model("qwen3"), targets)
    assert isinstance(caught.value, ConfigError)
