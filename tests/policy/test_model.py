from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from agrpo.config import ModelSection
from agrpo.errors import ModelError
from agrpo.policy.attention import PACKED, attention_of
from agrpo.policy.model import load_policy
from agrpo.policy.verifying import refuse_unknown_layers, verify_packing

MakeModel = Callable[..., PreTrainedModel]


def saved(folder: Path, model: PreTrainedModel) -> ModelSection:
    model.save_pretrained(folder)
    return ModelSection(path=str(folder))


def test_policy_loads_in_its_type_ready_for_packed_rows(tiny_model: Path):
    policy = load_policy(ModelSection(path=str(tiny_model), dtype="bfloat16"), "cpu")
    assert policy.dtype == torch.bfloat16 and not policy.training
    assert attention_of(policy) == PACKED


def test_weights_lie_in_aligned_storage_of_their_own(tiny_model: Path):
    policy = load_policy(ModelSection(path=str(tiny_model)), "cpu")
    stored = load_file(tiny_model / "model.safetensors")
    assert all(weight.data_ptr() % 64 == 0 for weight in policy.parameters())
    assert all(torch.equal(weight, stored[name]) for name, weight in policy.named_parameters())


def test_dropout_is_off_even_in_training_mode(tmp_path: Path, make_model: MakeModel):
    model = make_model("gpt2", attn_pdrop=0.5, embd_pdrop=0.5, resid_pdrop=0.5)
    policy = load_policy(saved(tmp_path, model), "cpu").train()
    policy.set_attn_implementation("eager")
    tokens = torch.arange(10)[None]
    assert torch.equal(policy(input_ids=tokens).logits, policy(input_ids=tokens).logits)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./absent", "some/deep/folder"])
def test_missing_folder_is_named(path: str):
    with pytest.raises(ModelError, match=r"no such folder \(looked for /.*save_pretrained"):
        load_policy(ModelSection(path=path))


def test_hub_id_that_cannot_be_reached_is_named_with_the_reason():
    with pytest.raises(
        ModelError, match=r'"agrpo/absent": .*there is no folder /.*/agrpo/absent, and from the hub\): .+'
    ):
        load_policy(ModelSection(path="agrpo/absent"))


def test_folder_without_a_model_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        load_policy(ModelSection(path=str(tmp_path)))


def test_torn_weights_are_no_model(tmp_path: Path, make_model: MakeModel):
    section = saved(tmp_path, make_model("llama"))
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match=f"could be loaded from {tmp_path}: ."):
        load_policy(section)


def test_weights_that_would_start_at_random_are_refused(tmp_path: Path, make_model: MakeModel):
    section = saved(tmp_path, make_model("llama"))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights .* such as model\.layers\.1\.mlp\.up_proj\.weight"):
        load_policy(section)


@pytest.mark.spec("A-017", "A-018")
@pytest.mark.parametrize(
    ("family", "what"),
    [
        ("gpt_oss", "attention sinks"),
        ("mamba", "layers of type linear_attention"),
        ("lfm2", "layers of type conv"),
        ("xlstm", "carries a state from token to token"),
    ],
)
def test_model_that_packed_training_would_get_wrong_is_refused_by_name(family: str, what: str, make_model: MakeModel):
    with pytest.raises(ModelError, match=what):
        refuse_unknown_layers(make_model(family))


def test_logits_scaled_behind_the_configuration_are_found(make_model: MakeModel):
    model = make_model("cohere")
    model.logit_scale = 1.0
    with pytest.raises(ModelError, match=r"CohereForCausalLM gives a mean log-prob of -\d.*mean difference \d"):
        verify_packing(model)


def test_family_whose_attention_cannot_be_replaced_is_refused(make_model: MakeModel):
    with pytest.raises(ModelError, match="does not let its attention be replaced"):
        verify_packing(make_model("bloom"))


def test_unreadable_configuration_is_no_model(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    with pytest.raises(ModelError, match="unheard_of"):
        load_policy(ModelSection(path=str(tmp_path)))
