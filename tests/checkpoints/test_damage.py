"""Every byte of a checkpoint is vouched for: one that is flipped is found and its file named, or changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.checkpoints.manifest import verified
from agrpo.checkpoints.single import Keepsakes
from agrpo.errors import CheckpointError
from tests.checkpoints.test_single import make, train, write

NAMES = ["MANIFEST.json", "state.json", "model.safetensors", "optimizer.safetensors", "extra.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_byte_of_any_file_is_named_or_changes_nothing(name: str, tmp_path: Path):
    model, optimizer = make(0)
    train(model, optimizer, range(2))
    write(tmp_path, model, optimizer, Keepsakes(tensors={"scale": model.scale}, values={"mean": 0.5}))
    whole, file = verified(tmp_path), tmp_path / name
    data, found = file.read_bytes(), 0
    places = range(len(data)) if name == "MANIFEST.json" else [*range(len(data))[:500], *range(500, len(data), 5)]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            assert verified(tmp_path) == whole, f"byte {place} changed what is read"
        except CheckpointError as error:
            assert name in str(error)
            found += 1
    assert found >= len(places) - (len('"checksum') if name == "MANIFEST.json" else 0)
