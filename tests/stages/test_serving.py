"""Serving a version: an engine is believed only after its probe agreed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
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
from agrpo.records.progress import Probe, WeightsReady
from agrpo.stages.serving import Serving
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
            await Serving(folder, engine, "generator-x", "float32").serve(ready)
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


@pytest.fixture
def small_steps(folder: RunFolder, tiny_model: Path) -> tuple[RunFolder, list[WeightsReady]]:
    """Versions 0 to 3, each so near to the one before that rounding could hide the step."""
    model = load_policy(ModelSection(path=str(tiny_model)))
    versions: list[WeightsReady] = []
    for version in range(4):
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=8e-6 if version else 0.0)
        scratch = folder.filesystem.scratch()
        write_weights(scratch, model)
        folder.filesystem.put_folder(f"weights/{version}", scratch)
        versions.append(
            WeightsReady(
                version=version,
                attempt=0,
                step=version,
                digest=digest_of(tensor_digests(model)),
                folder=f"weights/{version}",
                probe=make_probe(model, seed=1),
                published_at=time.time(),
            )
        )
    return folder, versions


@pytest.mark.spec("K10")
@pytest.mark.parametrize(
    ("loads", "told", "kept"),
    [
        ([0, 1, 1], [0, 1, 2], "told to load version 2 and serves version 1 still"),
        ([0, 1, 2, 0], [0, 1, 2, 2], "told to load version 2 and serves version 0 still"),
        ([0, 1, 2, 3], [0, 1, 2, 3], None),
    ],
)
def test_weights_before_are_told_from_new_ones_however_small_the_step(
    small_steps, tiny_model: Path, loads: list[int], told: list[int], kept: str | None
):
    folder, versions = small_steps

    async def served() -> None:
        engine = Transformers(threads=1)(ModelSection(path=str(tiny_model)))
        load, given = engine.load, iter(loads)
        engine.load = lambda _, version: load(where(next(given)), version)  # type: ignore[method-assign]
        serving = Serving(folder, engine, "generator-x", "float32")

        def where(version: int) -> Path:
            found = folder.filesystem.local_folder(f"weights/{version}")
            assert found is not None
            return found

        try:
            for version in told:
                await serving.serve(versions[version])
        finally:
            await engine.close()

    if kept is None:
        asyncio.run(served())
        return
    with pytest.raises(ProbeMismatch, match=kept):
        asyncio.run(served())


class Answering:
    """Servers that answer each version's probe with what they are told, whatever they were given."""

    def __init__(self, dtype: str, answers: Iterable[list[list[float]]]) -> None:
        self.dtype = dtype
        self._answers = iter(answers)

    async def load(self, folder: Path, version: int) -> None: ...

    async def next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[list[float]]:
        return next(self._answers)


def probed(folder: RunFolder, version: int, logprobs: list[float]) -> WeightsReady:
    """A published version whose weights give tokens 5 and 6 these log-probs."""
    network = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(network.weight, float(version))
    torch.nn.init.constant_(network.bias, 0.0)
    scratch = folder.filesystem.scratch()
    write_weights(scratch, network)
    folder.filesystem.put_folder(f"weights/{version}", scratch)
    return WeightsReady(
        version=version,
        attempt=0,
        step=version,
        digest=digest_of(tensor_digests(network)),
        folder=f"weights/{version}",
        probe=Probe(token_ids=[1, 2], top_ids=[5, 6], top_logprobs=logprobs),
        published_at=time.time(),
    )


MOVED_LITTLE = ("float32", [-1.0, -2.0], [-1.0001, -2.0])
MOVED_IN_COARSE = ("bfloat16", [-1.0, -2.0], [-1.15, -2.0])


@pytest.mark.spec("K10")
@pytest.mark.parametrize(
    ("versions", "answers", "kept"),
    [
        # The other server's difference is no measure of what rounding makes.
        (MOVED_LITTLE, [[[-1.0, -2.0]] * 2, [[-1.0001, -2.0], [-1.000001, -2.0]]], True),
        (MOVED_LITTLE, [[[-1.0, -2.0]] * 2, [[-1.0001, -2.0]] * 2], False),
        # Rounding hides the step; an answer that stays the same to the digit is none to new weights.
        (MOVED_IN_COARSE, [[[-0.98, -2.03]], [[-0.98, -2.03]]], True),
        (MOVED_IN_COARSE, [[[-0.98, -2.03]], [[-1.11, -2.04]]], False),
    ],
)
def test_a_server_that_keeps_its_weights_is_found_beside_others_and_in_coarse_types(
    folder: RunFolder, versions: tuple[str, list[float], list[float]], answers: list[list[list[float]]], kept: bool
):
    dtype, *logprobs = versions
    serving = Serving(folder, Answering(dtype, answers), "generator-x", dtype)  # type: ignore[arg-type]
    old, new = (probed(folder, version, told) for version, told in enumerate(logprobs))
    asyncio.run(serving.serve(old))
    if kept:
        with pytest.raises(ProbeMismatch, match="told to load version 1 and serves version 0 still"):
            asyncio.run(serving.serve(new))
    else:
        asyncio.run(serving.serve(new))
    assert (folder.acknowledgement("generator-x", 1) is None) is kept


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


def test_a_version_that_goes_while_it_is_loaded_is_a_version_that_is_gone(published, tiny_model: Path):
    folder, ready = published

    async def served() -> None:
        engine = Transformers(threads=1)(ModelSection(path=str(tiny_model)))
        load = engine.load

        async def load_late(weights: Path, version: int) -> None:
            folder.filesystem.delete(ready.folder)
            await load(weights, version)

        engine.load = load_late  # type: ignore[method-assign]
        try:
            await Serving(folder, engine, "generator-x", "float32").serve(ready)
        finally:
            await engine.close()

    with pytest.raises(StoreLostWrites, match="version 1 was published as weights/1, which is gone"):
        asyncio.run(served())
