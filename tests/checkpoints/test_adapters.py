"""What a learner leaves behind of an adapter: versions, checkpoints and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agrpo.errors import StoreError
from agrpo.policy.digest import tensor_digests
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.versions import newest_version
from agrpo.records.progress import WeightsForm
from agrpo.tensors import merged_tensors
from agrpo.weights.filesystem import digests_in
from agrpo.weights.lora import check_adapter
from agrpo.weights.published import check_published
from tests.checkpoints.keepers import Kept, keep, new_run, state_at

BY_ITSELF: dict[str, Any] = {
    "engine": {"name": "vllm", "serve": True, "num_generations": 4, "max_completion_length": 6},
    "adapter": {"rank": 2, "publish": "adapter"},
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path / "run")


def begin(folder: RunFolder, model: Path, **tables: Any) -> Kept:
    return keep(folder, model, **{**BY_ITSELF, **tables})


def published(kept: Kept, versions: range) -> Kept:
    for version in versions:
        kept.move()
        kept.keeper.publish(version, version, ordinal=version)
    return kept


@pytest.mark.spec("A-187")
def test_an_adapter_travels_alone_in_peft_format(folder: RunFolder, tiny_model: Path):
    kept = published(begin(folder, tiny_model), range(1))
    ready = newest_version(folder)
    place = folder.filesystem.local_folder(ready.folder)
    assert sorted(file.name for file in place.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert ready.form is WeightsForm.ADAPTER and ready.trained_digest == kept.keeper.digest()
    digests = digests_in(place / "adapter_model.safetensors")
    assert digests == tensor_digests(kept.trainee.model)
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    assert {f"{layer}.lora_A.weight", f"{layer}.lora_B.weight"} <= digests.keys()
    assert len(digests) == 2 * 7 * 2
    check_published(place, ready)


@pytest.mark.spec("A-195")
def test_adapters_stay_as_long_as_whole_weights_do(folder: RunFolder, tiny_model: Path):
    kept = begin(folder, tiny_model, asynchronous={"max_staleness": 2})
    assert published(kept, range(6)).weights() == [3, 4, 5]


def test_a_damaged_adapter_is_written_again_with_the_same_bytes(folder: RunFolder, tiny_model: Path):
    kept = published(begin(folder, tiny_model), range(1))
    ready = newest_version(folder)
    assert kept.keeper.damaged_version() is None
    file = Path(folder.url, ready.folder, "adapter_config.json")
    before = file.read_bytes()
    file.write_bytes(before.replace(b'"lora_alpha": 32', b'"lora_alpha": 33'))
    damaged = kept.keeper.damaged_version()
    assert damaged is not None
    kept.keeper.mend(damaged)
    assert file.read_bytes() == before and kept.keeper.damaged_version() is None


def test_weights_that_would_be_mended_with_other_bits_are_left_and_told(folder: RunFolder, tiny_model: Path):
    kept = published(begin(folder, tiny_model), range(1))
    ready = newest_version(folder)
    kept.move()
    with pytest.raises(StoreError, match=r"version 0 are damaged, and step 0 gives .* expected"):
        kept.keeper.mend(ready)
    check_adapter(Path(folder.url, ready.folder), ready.digest)


def test_whole_weights_of_a_tied_model_come_with_their_head(folder: RunFolder, tiny_model: Path):
    kept = published(begin(folder, tiny_model, adapter={"rank": 2, "publish": "merged"}), range(1))
    ready = newest_version(folder)
    place = Path(folder.url, ready.folder)
    head = load_file(place / "tied.safetensors")["lm_head.weight"]
    stored = load_file(place / "model.safetensors")
    assert torch.equal(head, stored["model.embed_tokens.weight"])
    assert stored.keys() == merged_tensors(kept.trainee.model).keys()
    check_published(place, ready)


@pytest.mark.parametrize("dora", [False, True])
def test_a_checkpoint_brings_an_adapter_back_bit_for_bit(folder: RunFolder, tiny_model: Path, dora: bool):
    kept = keep(folder, tiny_model, adapter={"rank": 2, "dora": dora})
    kept.checkpoint(1)
    expected, state = tensor_digests(kept.trainee.model), state_at(1, 0, kept.keeper.digest())
    kept.move()
    assert tensor_digests(kept.trainee.model) != expected
    assert kept.keeper.load_checkpoint(1) == state
    assert tensor_digests(kept.trainee.model) == expected
    kept.move()
    again = tensor_digests(kept.trainee.model)
    kept.keeper.load_checkpoint(1)
    kept.move()
    assert tensor_digests(kept.trainee.model) == again


def test_an_export_is_the_merged_model_and_its_adapter(folder: RunFolder, tiny_model: Path):
    kept = keep(folder, tiny_model, adapter={"rank": 2}, checkpoint={"save_steps": 1})
    kept.move()
    kept.keeper.export_if_due(1)
    place = Path(folder.url, "exports/step-1")
    model = AutoModelForCausalLM.from_pretrained(place)
    merged = merged_tensors(kept.trainee.model)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in merged.items())
    assert digests_in(place / "adapter" / "adapter_model.safetensors") == tensor_digests(kept.trainee.model)
