"""Serving a version: an engine is believed only after its probe agreed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import torch

from agrpo.config import ModelSection
from agrpo.engines.transformers import Transformers
from agrpo.errors import CheckpointError, ProbeMismatch, StoreError, StoreLostWrites
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.policy.model import load_policy
from agrpo.policy.probe import make_probe
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import WeightsReady
from agrpo.stages.serving import serve_version
from agrpo.weights.filesystem import write_weights


@pytest.fixture
def published(folder: RunFolder, tiny_model: Path) -> tuple[RunFolder, WeightsReady]:
    """Version 1: the tiny model with every weight a little larger."""
    model = load_policy(ModelSection(path=str(tiny_model)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    scratch = folder.filesystem.scratch()
    write_weights(scratch, model)
    folder.filesystem.put_folder("weights/1", scratch)
    ready = WeightsReady(
        version=1,
        attempt=0,
        step=1,
        digest=digest_of(tensor_digests(model)),
        folder="weights/1",
        probe=make_probe(model, seed=1),
        published_at=time.time(),
    )
    return folder, ready


def serve(folder: RunFolder, ready: WeightsReady, model: Path, *, ignoring_loads: bool = False) -> None:
    async def served() -> None:
        engine = Transformers(threads=1)(ModelSection(path=str(model)))
        if ignoring_loads:
            await engine.load(model, 0)
            engine.load = lambda folder, version: asyncio.sleep(0)  # type: ignore[method-assign]
        try:
            await serve_version(folder, engine, ready, "generator-x", "float32")
        finally:
            await engine.close()

    asyncio.run(served())


def test_a_version_is_acknowledged_when_the_probe_agrees(published, tiny_model: Path):
    folder, ready = published
    serve(folder, ready, tiny_model)
    acknowledgement = folder.acknowledgement("generator-x", 1)
    assert acknowledgement is not None
    assert acknowledgement.probe_difference < 1e-4


def test_an_engine_that_keeps_the_old_weights_is_found_out(published, tiny_model: Path):
    folder, ready = published
    with pytest.raises(ProbeMismatch, match=r"told to load version 1 and serves other weights.*log-prob of -\d"):
        serve(folder, ready, tiny_model, ignoring_loads=True)
    assert folder.acknowledgement("generator-x", 1) is None


def test_weights_that_are_not_those_of_the_record_are_never_loaded(published, tiny_model: Path):
    folder, ready = published
    other = WeightsReady(
        **{name: getattr(ready, name) for name in WeightsReady.__dataclass_fields__} | {"digest": "0" * 32}
    )
    with pytest.raises((StoreError, CheckpointError)):
        serve(folder, other, tiny_model)


def test_a_version_whose_weights_are_gone_says_so(published, tiny_model: Path):
    folder, ready = published
    folder.filesystem.delete("weights/1")
    with pytest.raises(StoreLostWrites, match="version 1 was published as weights/1, which is gone"):
        serve(folder, ready, tiny_model)
