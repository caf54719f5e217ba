from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from agrpo.errors import StoreError
from agrpo.tensors import digest_of, digest_of_tensor, owned_tensors
from agrpo.weights.filesystem import check_weights, write_weights


@pytest.fixture
def model(tiny_model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)


def digest(model: torch.nn.Module) -> str:
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


def test_any_flipped_byte_is_named_or_changes_no_tensor(tmp_path: Path):
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    write_weights(tmp_path, network)
    file, expected = tmp_path / "model.safetensors", digest(network)
    data, found = file.read_bytes(), 0
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            check_weights(tmp_path, expected)
        except StoreError as error:
            assert str(file) in str(error)
            found += 1
    assert found >= len(data) - len('{"format":"pt"}')


def untied(model: PreTrainedModel) -> PreTrainedModel:
    config = type(model.config)(**(model.config.to_dict() | {"tie_word_embeddings": False}))
    return type(model)(config)


def test_a_tied_head_is_written_apart_under_its_own_name(tmp_path: Path, model: PreTrainedModel):
    write_weights(tmp_path, model, with_head=True)
    stored = load_file(tmp_path / "tied.safetensors")
    assert list(stored) == ["lm_head.weight"] and torch.equal(stored["lm_head.weight"], model.lm_head.weight)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    check_weights(tmp_path, digest(model))


def test_a_head_of_its_own_is_not_written_apart(tmp_path: Path, model: PreTrainedModel):
    write_weights(tmp_path, untied(model), with_head=True)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")


def test_a_head_of_another_version_is_refused(tmp_path: Path, model: PreTrainedModel):
    write_weights(tmp_path / "old", model, with_head=True)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    write_weights(tmp_path / "new", model, with_head=True)
    (tmp_path / "old" / "tied.safetensors").replace(tmp_path / "new" / "tied.safetensors")
    with pytest.raises(StoreError, match=r"lm_head.weight with other bits than model.embed_tokens.weight"):
        check_weights(tmp_path / "new", digest(model))


def test_any_flipped_byte_of_the_head_is_named_or_changes_nothing(tmp_path: Path):
    model = small_tied_model()
    write_weights(tmp_path, model, with_head=True)
    file, expected = tmp_path / "tied.safetensors", digest(model)
    data, found = file.read_bytes(), 0
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            check_weights(tmp_path, expected)
        except StoreError as error:
            assert str(file) in str(error)
            found += 1
    assert found >= len(data) - len('{"format":"pt"}')


def small_tied_model() -> PreTrainedModel:
    settings = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4}
    return Qwen3ForCausalLM(Qwen3Config(**settings, **heads, tie_word_embeddings=True, pad_token_id=0))
