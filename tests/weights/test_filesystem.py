from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from agrpo.errors import StoreError
from agrpo.tensors import digest_of, digest_of_tensor, owned_tensors
from agrpo.weights.filesystem import check_weights, write_weights


@pytest.fixture
def model(tiny_model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)


def digest(model: PreTrainedModel) -> str:
    return digest_of({name: digest_of_tensor(tensor) for name, tensor in owned_tensors(model).items()})


def test_written_weights_are_the_models_tied_ones_once(tmp_path: Path, model: PreTrainedModel):
    write_weights(tmp_path / "1", model)
    stored = load_file(tmp_path / "1" / "model.safetensors")
    assert "lm_head.weight" not in stored and stored.keys() <= model.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in stored.items())
    check_weights(tmp_path / "1", digest(model))


def test_weights_of_another_version_are_refused(tmp_path: Path, model: PreTrainedModel):
    expected = digest(model)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    write_weights(tmp_path, model)
    with pytest.raises(StoreError, match=f"holds weights with digest {digest(model)}, expected {expected}"):
        check_weights(tmp_path, expected)


@pytest.mark.parametrize("kept", [0, 5, 2000, -1])
def test_torn_weights_are_refused(kept: int, tmp_path: Path, model: PreTrainedModel):
    write_weights(tmp_path, model)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(StoreError, match="torn"):
        check_weights(tmp_path, digest(model))


def test_changed_byte_is_found(tmp_path: Path, model: PreTrainedModel):
    write_weights(tmp_path, model)
    file = tmp_path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match="damaged or of another version"):
        check_weights(tmp_path, digest(model))


def test_absent_folder_is_named(tmp_path: Path):
    with pytest.raises(StoreError, match=r"absent/model\.safetensors: no such file"):
        check_weights(tmp_path / "absent", "0" * 32)
