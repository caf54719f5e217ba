"""Adapters as folders: what is written is what PEFT reads, and nothing torn is ever loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, set_peft_model_state_dict
from peft.tuners.lora import LoraModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from agrpo.config import AdapterSection
from agrpo.errors import StoreError
from agrpo.policy.adapter import add_adapter
from agrpo.policy.digest import tensor_digests
from agrpo.tensors import adapter_tensors
from agrpo.weights.lora import adapter_digest, check_adapter, read_adapter, write_adapter


def adapted(tiny_model: Path, seed: int = 0, rank: int = 1, **settings: object) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    targets = ["layers.0.self_attn.q_proj"]
    add_adapter(model, AdapterSection(rank=rank, targets=targets, **settings), seed)
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.add_(0.1)
    return model


@pytest.mark.parametrize("dora", [False, True])
def test_peft_reads_what_is_written(tmp_path: Path, tiny_model: Path, dora: bool):
    model = adapted(tiny_model, rank=3, dora=dora)
    write_adapter(tmp_path, model)
    settings = LoraConfig.from_pretrained(str(tmp_path))
    assert (settings.r, settings.lora_alpha, settings.use_dora) == (3, 32.0, dora)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    peft = LoraModel(base, settings, "default")
    stored = load_file(tmp_path / "adapter_model.safetensors")
    own = {name.removeprefix("base_model.model."): tensor for name, tensor in stored.items()}
    assert not set_peft_model_state_dict(peft.model, own).unexpected_keys
    tokens = torch.arange(1, 20)[None]
    with torch.no_grad():
        assert torch.equal(base(tokens).logits, model(tokens).logits)


def test_an_adapter_is_read_back_bit_for_bit(tmp_path: Path, tiny_model: Path):
    model, other = adapted(tiny_model), adapted(tiny_model, seed=1)
    write_adapter(tmp_path, model)
    assert tensor_digests(other) != tensor_digests(model)
    read_adapter(tmp_path, other)
    assert tensor_digests(other) == tensor_digests(model)


def test_an_adapter_over_other_layers_is_refused(tmp_path: Path, tiny_model: Path):
    write_adapter(tmp_path, adapted(tiny_model))
    other = AutoModelForCausalLM.from_pretrained(tiny_model)
    add_adapter(other, AdapterSection(rank=1, targets=["k_proj"]), 0)
    with pytest.raises(StoreError, match="differ in 6 tensors, such as base_model"):
        read_adapter(tmp_path, other)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_an_absent_file_is_named(tmp_path: Path, tiny_model: Path, name: str):
    model = adapted(tiny_model)
    write_adapter(tmp_path, model)
    (tmp_path / name).unlink()
    with pytest.raises(StoreError, match=f"{name}: no such file"):
        check_adapter(tmp_path, adapter_digest(model))


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_any_flipped_byte_is_named_or_changes_nothing(tmp_path: Path, tiny_model: Path, name: str):
    model = adapted(tiny_model)
    write_adapter(tmp_path, model)
    file, expected = tmp_path / name, adapter_digest(model)
    check_adapter(tmp_path, expected)
    data, found = file.read_bytes(), 0
    for place in range(0, len(data), 3):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            check_adapter(tmp_path, expected)
        except StoreError as error:
            assert str(tmp_path / "adapter_model.safetensors") in str(error)
            found += 1
    assert found >= len(range(0, len(data), 3)) - len('{"format":"pt"}')
