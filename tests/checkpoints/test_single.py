from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agrpo.checkpoints.manifest import verified, write_manifest
from agrpo.checkpoints.single import (
    Keepsakes,
    _copy,
    read_checkpoint,
    read_training_state,
    write_checkpoint,
    write_training_state,
)
from agrpo.errors import CheckpointError, CheckpointMismatch
from agrpo.records.checksum import sealed_document
from agrpo.records.manifest import RunIdentity
from agrpo.records.progress import CheckpointState
from agrpo.tensors import digest_of, digest_of_tensor, owned_tensors

FILES = ["model.safetensors", "optimizer.safetensors", "state.json"]
RUN = RunIdentity(name="sums", created_at="2026-11-29T08:00:00+00:00", config_digest="0" * 32)


class Tied(torch.nn.Module):
    """Two layers that share a weight, a buffer, and a weight that is never used."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.last = torch.nn.Linear(width, width, bias=False)
        self.last.weight = self.first.weight
        self.unused = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(values))) * self.scale


def make(seed: int, width: int = 8) -> tuple[Tied, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = Tied(width)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)


def train(model: Tied, optimizer: torch.optim.AdamW, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        model(torch.randn(4, 8, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def state_at(step: int, model: Tied) -> CheckpointState:
    return CheckpointState(
        attempt=0,
        step=step,
        digest=digest_of(digests(model)),
        floor=4,
        consumed=[5, 7],
        num_replaced=1,
        num_tokens=100,
        num_prompts=6,
        version=step,
        written_at=1.5,
    )


def write(folder: Path, model: Tied, optimizer: torch.optim.AdamW, keepsakes: Keepsakes | None = None) -> None:
    write_checkpoint(folder, model, optimizer, run=RUN, state=state_at(3, model), keepsakes=keepsakes)


def read(folder: Path, model: Tied, optimizer: torch.optim.AdamW) -> CheckpointState:
    return read_checkpoint(folder, model, optimizer, run=RUN, keepsakes=Keepsakes())


def digests(model: Tied) -> dict[str, str]:
    return {name: digest_of_tensor(tensor) for name, tensor in owned_tensors(model).items()}


def test_three_steps_saved_loaded_and_three_more_are_six_steps(tmp_path: Path):
    straight, optimizer = make(0)
    train(straight, optimizer, range(6))
    begun, optimizer = make(0)
    train(begun, optimizer, range(3))
    write(tmp_path / "3", begun, optimizer)
    resumed, optimizer = make(1)
    train(resumed, optimizer, range(20, 22))
    assert read(tmp_path / "3", resumed, optimizer) == state_at(3, begun)
    assert digests(resumed) == digests(begun)
    train(resumed, optimizer, range(3, 6))
    assert digests(resumed) == digests(straight) != digests(begun)


def test_checkpoint_before_the_first_step_brings_back_a_fresh_optimizer(tmp_path: Path):
    model, optimizer = make(0)
    write(tmp_path, model, optimizer)
    train(model, optimizer, range(2))
    read(tmp_path, model, optimizer)
    assert digests(model) == digests(make(0)[0])
    assert not optimizer.state


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_named_and_nothing_is_changed(name: str, tmp_path: Path):
    model, optimizer = make(0)
    train(model, optimizer, range(2))
    write(tmp_path, model, optimizer)
    data = bytearray((tmp_path / name).read_bytes())
    data[-2] ^= 1
    (tmp_path / name).write_bytes(data)
    other, fresh = make(1)
    with pytest.raises(CheckpointError, match=rf"{name} has \d+ bytes .*it is damaged"):
        read(tmp_path, other, fresh)
    assert digests(other) == digests(make(1)[0]) and not fresh.state


@pytest.mark.parametrize("name", FILES)
def test_absent_or_short_file_is_named(name: str, tmp_path: Path):
    write(tmp_path, *make(0))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=name):
        verified(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is absent"):
        verified(tmp_path)


def test_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path):
    write(tmp_path, *make(0))
    (tmp_path / "MANIFEST.json").write_text("{")
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        verified(tmp_path)
    (tmp_path / "MANIFEST.json").unlink()
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        verified(tmp_path)


def test_manifest_vouches_for_every_file(tmp_path: Path):
    model, optimizer = make(0)
    write(tmp_path, model, optimizer, Keepsakes(tensors={"reference.weight": torch.ones(2)}))
    manifest = verified(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir() if path.name != "MANIFEST.json")
    assert sorted(manifest.files) == names == sorted([*FILES, "extra.safetensors"])
    assert (manifest.run, manifest.step, manifest.digest) == (RUN, 3, digest_of(digests(model)))


def test_checkpoint_of_another_model_is_refused(tmp_path: Path):
    write(tmp_path, *make(0, width=4))
    with pytest.raises(CheckpointError, match=r"first\.bias as torch\.float32 \(4,\), .* as torch\.float32 \(8,\)"):
        read(tmp_path, *make(0))
    model, optimizer = make(0, width=4)
    with pytest.raises(CheckpointError, match=r"as torch\.float32 \(4,\), .* as torch\.bfloat16 \(4,\)"):
        read(tmp_path, model.bfloat16(), optimizer)


def test_what_parts_of_a_run_keep_comes_back(tmp_path: Path):
    kept = Keepsakes(tensors={"reference.weight": torch.arange(4.0)}, values={"entropy": {"coefficient": 0.1 + 0.2}})
    write(tmp_path, *make(0), keepsakes=kept)
    found = Keepsakes(values={"left": "over"})
    read_checkpoint(tmp_path, *make(1), run=RUN, keepsakes=found)
    assert found.values == kept.values
    assert found.tensors.keys() == kept.tensors.keys()
    assert torch.equal(found.tensors["reference.weight"], torch.arange(4.0))


def test_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path):
    model, optimizer = make(0)
    write(tmp_path, model, optimizer)
    other = RunIdentity(name="sorting", created_at=RUN.created_at, config_digest="1" * 32)
    with pytest.raises(
        CheckpointMismatch, match=r"another run: of sums of .*, settings 000000000000; this run is sorting"
    ):
        read_checkpoint(tmp_path, *make(1), run=other, keepsakes=Keepsakes())


def test_checkpoint_of_a_later_schema_is_refused_and_not_taken_for_a_damaged_one(tmp_path: Path):
    write(tmp_path, *make(0))
    document = json.loads((tmp_path / "MANIFEST.json").read_text()) | {"schema_version": "2.0"}
    del document["checksum"]
    (tmp_path / "MANIFEST.json").write_bytes(sealed_document(json.dumps(document).encode()))
    with pytest.raises(CheckpointMismatch, match=r"schema version 2\.0.*upgrade agrpo"):
        verified(tmp_path)


def test_training_begins_from_an_export_with_the_moments_it_ended_with(tmp_path: Path):
    straight, optimizer = make(0)
    train(straight, optimizer, range(6))
    begun, optimizer = make(0)
    train(begun, optimizer, range(3))
    export(tmp_path, begun, optimizer)
    loaded, fresh = make(1)
    loaded.load_state_dict(begun.state_dict())
    read_training_state(tmp_path, loaded, fresh, keepsakes=Keepsakes())
    train(loaded, fresh, range(3, 6))
    assert digests(loaded) == digests(straight)


def test_an_export_is_no_checkpoint_and_its_moments_are_of_its_own_weights(tmp_path: Path):
    begun, optimizer = make(0)
    train(begun, optimizer, range(3))
    export(tmp_path, begun, optimizer)
    with pytest.raises(CheckpointMismatch, match="is an export"):
        read(tmp_path, *make(1))
    with pytest.raises(CheckpointMismatch, match="was exported with weights of digest"):
        read_training_state(tmp_path, *make(1), keepsakes=Keepsakes())


def export(folder: Path, model: Tied, optimizer: torch.optim.AdamW) -> None:
    write_training_state(folder, model, optimizer, Keepsakes())
    write_manifest(folder, run=RUN, step=3, digest=digest_of(digests(model)))


def test_a_file_that_is_removed_while_it_is_read_is_said(tmp_path: Path):
    with pytest.raises(CheckpointError, match="was removed while it was read"):
        _copy(tmp_path / "model.safetensors", {"weight": torch.zeros(2)})
