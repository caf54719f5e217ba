from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from agrpo.tensors.file import TYPES, save_tensors
from agrpo.tensors.whole import Source, Tensors


def test_a_file_is_what_safetensors_reads(tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "wide": torch.randn(3, 5, dtype=torch.float64, generator=generator),
        "narrow": torch.randn(7, generator=generator).to(torch.bfloat16),
        "none": torch.zeros(0, 4),
        "one": torch.tensor(2, dtype=torch.int64),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "said": torch.tensor([True, False, True]),
    }
    save_tensors(tensors, tmp_path / "file", {"head": "embedding"})
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    assert all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in tensors.items()
    )
    with safe_open(tmp_path / "file", framework="pt") as stored:
        assert stored.metadata() == {"format": "pt", "head": "embedding"}


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_read_back_bit_for_bit(name: str, tmp_path: Path):
    dtype = getattr(torch, name)
    bits = torch.arange(8 * dtype.itemsize, dtype=torch.uint8) % 2
    tensor = bits.view(dtype)
    save_tensors({"tensor": tensor}, tmp_path / "file")
    found = load_file(tmp_path / "file")["tensor"]
    assert found.dtype == dtype and torch.equal(found.view(torch.uint8), bits)


def test_tensors_are_made_one_after_the_other_and_not_before(tmp_path: Path):
    made: list[str] = []

    def source(name: str) -> Source:
        def make() -> torch.Tensor:
            made.append(name)
            return torch.ones(2)

        return Source(dtype=torch.float32, shape=(2,), make=make)

    tensors = Tensors({name: source(name) for name in ("b", "a")})
    assert list(tensors) == ["b", "a"] and "a" in tensors and not made
    save_tensors(tensors, tmp_path / "file")
    assert made == ["a", "b"]
    with pytest.raises(AssertionError, match="a is derived from other tensors"):
        tensors.fill("a", torch.zeros(2))
