"""Checkpoints in an object store, which knows no rename: the manifest is uploaded last, and without one there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.errors import StoreFull
from agrpo.queue.filesystems.object_store import ObjectStore
from agrpo.records.progress import Base
from tests.checkpoints.keepers import events_of, join, keep, new_run
from tests.queue.conftest import open_s3, s3_endpoint
from tests.queue.faulty_proxy import Fault, faulty_proxy

__all__ = ["open_s3", "s3_endpoint"]

OpenS3 = Callable[..., ObjectStore]


@pytest.mark.parametrize("refused", ["state.json", "MANIFEST.json"])
def test_a_checkpoint_whose_upload_broke_off_is_passed_over(
    refused: str, s3_endpoint: str, open_s3: OpenS3, tiny_model: Path
):
    puts: list[str] = []

    def full_at_step_1(method: str, path: str) -> Fault:
        if method == "PUT" and "/checkpoints/" in path:
            puts.append(path.partition("/checkpoints/")[2].partition("?")[0])
        return Fault.FULL if puts and puts[-1] == f"00000001-000000/{refused}" and method == "PUT" else Fault.NONE

    with faulty_proxy(s3_endpoint, full_at_step_1) as endpoint:
        folder = new_run(open_s3(endpoint))
        kept = keep(folder, tiny_model)
        kept.checkpoint(0)
        assert puts[-1] == "00000000-000000/MANIFEST.json"
        with pytest.raises(StoreFull):
            kept.checkpoint(1)
    folder = new_run(open_s3())
    assert "00000001-000000" in folder.filesystem.list("checkpoints")
    join(folder, Base(attempt=1, parent=0, base_step=1, adopted_through=1))
    resumed = keep(folder, tiny_model, attempt=1)
    assert resumed.keeper.load_checkpoint(1).step == 0
    (skipped,) = events_of(folder, 1, "checkpoint_skipped")
    assert "00000001-000000 has no manifest: its writing was not finished" in skipped.payload["reason"]


def test_a_byte_flipped_in_the_store_is_found_after_the_download(open_s3: OpenS3, tiny_model: Path):
    folder = new_run(open_s3())
    kept = keep(folder, tiny_model)
    kept.checkpoint(0)
    kept.checkpoint(1)
    for name in ("model.safetensors", "MANIFEST.json"):
        key = f"checkpoints/00000001-000000/{name}"
        data = bytearray(folder.filesystem.get(key))
        data[len(data) // 2] ^= 1
        folder.filesystem.put(key, bytes(data), exclusive=False)
        resumed = keep(new_run(open_s3()), tiny_model, attempt=1)
        assert resumed.keeper.load_checkpoint(1).step == 0
        assert name in events_of(folder, 1, "checkpoint_skipped")[-1].payload["reason"]
