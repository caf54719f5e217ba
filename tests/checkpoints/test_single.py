from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agrpo.checkpoints.single import read_checkpoint, verify_checkpoint, write_checkpoint
from agrpo.errors import CheckpointError
from agrpo.tensors import digest_of_tensor, owned_tensors

FILES = ["model.safetensors", "optimizer.safetensors", "state.json"]


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


def digests(model: Tied) -> dict[str, str]:
    return {name: digest_of_tensor(tensor) for name, tensor in owned_tensors(model).items()}


def test_three_steps_saved_loaded_and_three_more_are_six_steps(tmp_path: Path):
    straight, optimizer = make(0)
    train(straight, optimizer, range(6))
    begun, optimizer = make(0)
    train(begun, optimizer, range(3))
    write_checkpoint(tmp_path / "3", begun, optimizer, {"step": 3, "consumed": [1, 2]})
    resumed, optimizer = make(1)
    train(resumed, optimizer, range(20, 22))
    assert read_checkpoint(tmp_path / "3", resumed, optimizer) == {"step": 3, "consumed": [1, 2]}
    assert digests(resumed) == digests(begun)
    train(resumed, optimizer, range(3, 6))
    assert digests(resumed) == digests(straight) != digests(begun)


def test_checkpoint_before_the_first_step_brings_back_a_fresh_optimizer(tmp_path: Path):
    model, optimizer = make(0)
    write_checkpoint(tmp_path, model, optimizer, {})
    train(model, optimizer, range(2))
    read_checkpoint(tmp_path, model, optimizer)
    assert digests(model) == digests(make(0)[0])
    assert not optimizer.state


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_named_and_nothing_is_changed(name: str, tmp_path: Path):
    model, optimizer = make(0)
    train(model, optimizer, range(2))
    write_checkpoint(tmp_path, model, optimizer, {})
    data = bytearray((tmp_path / name).read_bytes())
    data[-2] ^= 1
    (tmp_path / name).write_bytes(data)
    other, fresh = make(1)
    with pytest.raises(CheckpointError, match=rf"{name} has \d+ bytes .*it is damaged"):
        read_checkpoint(tmp_path, other, fresh)
    assert digests(other) == digests(make(1)[0]) and not fresh.state


@pytest.mark.parametrize("name", FILES)
def test_absent_or_short_file_is_named(name: str, tmp_path: Path):
    write_checkpoint(tmp_path, *make(0), {})
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=name):
        verify_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is absent"):
        verify_checkpoint(tmp_path)


def test_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path):
    write_checkpoint(tmp_path, *make(0), {})
    (tmp_path / "MANIFEST.json").write_text("{")
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        verify_checkpoint(tmp_path)
    (tmp_path / "MANIFEST.json").unlink()
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        verify_checkpoint(tmp_path)


def test_manifest_vouches_for_every_file(tmp_path: Path):
    write_checkpoint(tmp_path, *make(0), {})
    manifest = json.loads((tmp_path / "MANIFEST.json").read_text())
    assert (
        sorted(manifest)
        == sorted(FILES)
        == sorted(path.name for path in tmp_path.iterdir() if path.name != "MANIFEST.json")
    )


def test_checkpoint_of_another_model_is_refused(tmp_path: Path):
    write_checkpoint(tmp_path, *make(0, width=4), {})
    with pytest.raises(CheckpointError, match=r"first\.bias as torch\.float32 \(4,\), .* as torch\.float32 \(8,\)"):
        read_checkpoint(tmp_path, *make(0))
    model, optimizer = make(0, width=4)
    with pytest.raises(CheckpointError, match=r"as torch\.float32 \(4,\), .* as torch\.bfloat16 \(4,\)"):
        read_checkpoint(tmp_path, model.bfloat16(), optimizer)
