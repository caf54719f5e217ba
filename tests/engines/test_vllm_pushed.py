"""Weights that the learner has pushed: the engine meets their label before it was told to load them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs, engines
from agrpo.errors import EngineLost
from agrpo.records.sampling import Sampling
from tests.vllm_like import Options, Server
from tests.vllm_like.driving import QUICK, drive, requests_of

PUSHED = {"1@00000001-aa": 1}
"""Versions of this run by label, as its folder has them."""


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model, Options(block_size=4)) as server:
        yield server


def engine_of(server: Server) -> Engine:
    needs = Needs(sampling=Sampling(max_completion_length=8), version_of=PUSHED.get)
    part = engines.build("vllm", {**QUICK, "base_urls": [server.url]})
    return part(ModelSection(path=str(server.model)), needs)


async def versions_after(server: Server, engine: Engine, label: str) -> list[int]:
    """Load version 0; then somebody else calls the weights `label`: what sampled a completion."""
    try:
        await engine.load(server.model, 0)
        server.service.scheduler.label = label
        (turn,) = await engine.complete(requests_of([3]))
        assert not engine.behind
        return sorted({*turn.output_versions})
    finally:
        await engine.close()


def test_tokens_under_a_pushed_label_are_of_that_version_before_it_was_loaded(server: Server):
    assert asyncio.run(versions_after(server, engine_of(server), "1@00000001-aa")) == [1]


def test_a_label_that_the_run_has_not_published_ends_it(server: Server):
    with pytest.raises(EngineLost, match="was given the weights 1@00000001-other by somebody else"):
        asyncio.run(versions_after(server, engine_of(server), "1@00000001-other"))


def test_a_version_that_was_pushed_is_not_loaded_again(server: Server, tmp_path: Path):
    async def loads() -> tuple[int, int]:
        engine = engine_of(server)
        try:
            await engine.load(server.model, 0)
            before = len(server.asked("/collective_rpc"))
            server.service.scheduler.label = "1@00000001-aa"
            await engine.load(tmp_path / "00000001-aa", 1)
            (turn,) = await engine.complete(requests_of([3]))
            assert {*turn.output_versions} == {1} and len(await engine.next_token_logprobs([5], [6])) == 1
            return before, len(server.asked("/collective_rpc"))
        finally:
            await engine.close()

    assert asyncio.run(loads()) == (1, 1)


def test_a_server_that_was_left_paused_under_the_label_is_loaded_and_goes_on(server: Server, tmp_path: Path):
    folder = tmp_path / "00000001-aa"
    shutil.copytree(server.model, folder)

    async def sampled() -> set[int]:
        engine = engine_of(server)
        try:
            await engine.load(server.model, 0)
            server.service.scheduler.label, server.service.scheduler.paused = "1@00000001-aa", True
            await engine.load(folder, 1)
            (turn,) = await engine.complete(requests_of([3]))
            return {*turn.output_versions}
        finally:
            await engine.close()

    assert asyncio.run(sampled()) == {1}
    assert len(server.asked("/collective_rpc")) == 2 and not server.service.scheduler.paused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(), """has no weight transfer.*--weight-transfer-config '{"backend": "nccl"}'"""),
        (Options(weight_transfer="ipc"), "has the backend ipc"),
        (Options(weight_transfer="nccl", enable_scale_out=False), "needs the label of each token.*--enable-scale-out"),
    ],
)
def test_nccl_by_name_finds_what_a_server_lacks(tiny_model: Path, options: Options, said: str):
    async def nothing(engine: Engine) -> None: ...

    with Server(tiny_model, options) as server, pytest.raises(EngineLost, match=said):
        drive([server], nothing, weights="nccl")
