"""New weights on their way to servers: what fails on the way, and what the servers serve afterwards."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs, engines
from agrpo.errors import EngineError, EngineLost, StoreError
from agrpo.records.sampling import Sampling
from tests.vllm_like import Do, Options, Server
from tests.vllm_like.driving import PROMPT, drive, requests_of

PHASES = {
    "pause": "/pause",
    "load": "/collective_rpc",
    "label": "/update_weight_version",
}
FAILURES: list[tuple[Do, dict[str, Any], str]] = [
    (Do.HANG, {}, "no answer within 1 s"),
    (Do.STATUS, {"status": 500, "text": "CUDA error: out of memory"}, "answered 500: CUDA error: out of memory"),
    (Do.DROP, {}, "ServerDisconnectedError: Server disconnected"),
    (Do.DROP, {"late": True}, "ServerDisconnectedError: Server disconnected"),
]


@pytest.fixture
def larger(changed_weights: Callable[..., Path]) -> Path:
    """The tiny model's weights, each a little larger."""

    def change(tensors: dict[str, Tensor]) -> None:
        for tensor in tensors.values():
            tensor.mul_(1.3)

    return changed_weights(change)


async def versions_of(engine: Engine) -> set[int]:
    """Under which versions a completion was sampled now."""
    (turn,) = await engine.complete(requests_of([3]))
    return {*turn.output_versions}


def standing(server: Server) -> tuple[str, bool]:
    return server.service.scheduler.label, server.service.scheduler.paused


@pytest.mark.spec("K17", "A-179")
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_publish_that_fails_leaves_the_version_before_and_the_next_one_works(
    tiny_model: Path, larger: Path, phase: str, failure: tuple[Do, dict[str, Any], str]
):
    do, settings, text = failure

    async def body(engine: Engine) -> None:
        await engine.load(tiny_model, 1)
        [before] = await engine.next_token_logprobs(PROMPT, [5, 80])
        with pytest.raises(EngineError, match=re.escape(text)) as raised:
            await engine.load(larger, 2)
        assert re.match(
            rf"version 2 did not reach server {server.url}: {phase} failed after \d\.\d s: ", str(raised.value)
        )
        assert str(raised.value).endswith(f"; it serves 1@{tiny_model.name} again")
        assert standing(server) == (f"1@{tiny_model.name}", False)
        assert await versions_of(engine) == {1}
        [after] = await engine.next_token_logprobs(PROMPT, [5, 80])
        assert after == pytest.approx(before, abs=1e-6)
        await engine.load(larger, 2)
        assert standing(server) == (f"2@{larger.name}", False)
        assert await versions_of(engine) == {2}

    with Server(tiny_model) as server:
        server.fault(do, PHASES[phase], first=3, **settings)
        drive([server], body)


@pytest.mark.parametrize(("do", "settings", "text"), FAILURES)
def test_a_resume_that_fails_leaves_a_server_that_goes_on(
    tiny_model: Path, larger: Path, do: Do, settings: dict[str, Any], text: str
):
    """Whether under the version before, with an error, or under the new one, since it had all of it."""

    async def body(engine: Engine) -> None:
        await engine.load(tiny_model, 1)
        served = 2
        try:
            await engine.load(larger, 2)
        except EngineError as error:
            assert text in str(error)
            served = 1
        assert await versions_of(engine) == {served}
        assert standing(server)[1] is False
        await engine.load(tiny_model, 3)
        assert await versions_of(engine) == {3}

    with Server(tiny_model) as server:
        server.fault(do, "/resume", first=3, **settings)
        drive([server], body)


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.spec("K17")
def test_a_server_that_dies_in_a_publish_is_named_and_given_the_weights_when_it_is_back(
    tiny_model: Path, larger: Path, caplog: pytest.LogCaptureFixture
):
    async def body(engine: Engine) -> None:
        await engine.load(tiny_model, 1)
        loading = asyncio.create_task(engine.load(larger, 2))
        await asyncio.to_thread(until_gone, server)
        await asyncio.to_thread(server.restart)  # with the weights of its start
        await loading
        assert standing(server) == (f"2@{larger.name}", False)
        assert await versions_of(engine) == {2}

    with Server(tiny_model) as server:
        server.fault(Do.DIE, "/collective_rpc", first=3)
        with caplog.at_level(logging.WARNING, logger="agrpo.engines"):
            drive([server], body, outage_seconds=20.0)
        told = f"version 2 did not reach server {server.url}: load failed after "
        assert [record for record in caplog.records if record.getMessage().startswith(told)]


def until_gone(server: Server) -> None:
    deadline = time.monotonic() + 20
    while server.is_open:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("quick_looks")
def test_a_server_that_dies_in_a_publish_for_good_ends_the_run_with_the_version_and_the_phase(
    tiny_model: Path, larger: Path
):
    async def body(engine: Engine) -> None:
        await engine.load(tiny_model, 1)
        with pytest.raises(
            EngineLost, match=r"no vLLM server has been there .*version 2 did not reach server .*: load failed"
        ):
            await engine.load(larger, 2)

    with Server(tiny_model) as server:
        server.fault(Do.DIE, "/collective_rpc", first=3)
        drive([server], body, outage_seconds=1.0)


@pytest.mark.usefixtures("quick_looks")
def test_a_server_that_was_started_again_is_seen_to_be_behind(tiny_model: Path, larger: Path):
    async def body(engine: Engine) -> None:
        await engine.load(larger, 1)
        await asyncio.to_thread(server.restart)
        asking = asyncio.create_task(versions_of(engine))
        while not engine.behind:
            await asyncio.sleep(0.02)
        assert not asking.done()
        await engine.load(larger, 1)
        assert await asking == {1}

    with Server(tiny_model) as server:
        drive([server], body)


def test_weights_of_another_shape_break_the_server_and_say_so(tiny_model: Path, changed_weights: Callable[..., Path]):
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:10].clone()

    async def body(engine: Engine) -> None:
        with pytest.raises(EngineError, match="exceeds dimension size") as raised:
            await engine.load(folder, 1)
        assert str(raised.value).endswith(f"; it stays paused, for its weights are broken: start {server.url} again")
        assert standing(server) == (f"0@{tiny_model.name}", True)

    folder = changed_weights(change)
    with Server(tiny_model) as server:
        drive([server], body)


def test_a_server_of_the_runs_own_that_is_broken_is_given_up(tiny_model: Path, changed_weights: Callable[..., Path]):
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:10].clone()

    async def main(url: str) -> None:
        given_up: list[str] = []
        needs = Needs(servers=lambda: [url], give_up=given_up.append, sampling=Sampling(max_completion_length=8))
        engine = engines.build("vllm", {"serve": True, "start_seconds": 20.0})(
            ModelSection(path=str(tiny_model)), needs
        )
        try:
            await engine.load(tiny_model, 0)
            with pytest.raises(EngineError, match="its weights are broken, and it is started again"):
                await engine.load(folder, 1)
        finally:
            await engine.close()
        assert given_up == [url]

    folder = changed_weights(change)
    with Server(tiny_model) as server:
        asyncio.run(main(server.url))


@pytest.mark.parametrize("trouble", [StoreError("the share is away"), ValueError("a slip")])
def test_whoever_waits_for_servers_outlives_a_share_that_is_away_and_is_told_of_a_slip(
    tiny_model: Path, trouble: Exception
):
    looks: list[None] = []

    async def main(url: str) -> None:
        def urls() -> list[str]:
            looks.append(None)
            if len(looks) == 1:
                raise trouble
            return [url]

        needs = Needs(servers=urls, sampling=Sampling(max_completion_length=8))
        engine = engines.build("vllm", {"serve": True, "start_seconds": 20.0})(
            ModelSection(path=str(tiny_model)), needs
        )
        try:
            await engine.load(tiny_model, 0)
        finally:
            await engine.close()

    with Server(tiny_model) as server:
        if isinstance(trouble, StoreError):
            asyncio.run(main(server.url))
            return
        with pytest.raises(ValueError, match="a slip"):
            asyncio.run(main(server.url))


@pytest.mark.spec("A-183")
def test_every_publish_empties_the_prefix_cache(tiny_model: Path, larger: Path):
    prompt = [7] * 40  # two blocks and a half

    async def body(engine: Engine) -> None:
        [old] = await engine.next_token_logprobs(prompt, [5, 80])
        await engine.load(larger, 1)
        [new] = await engine.next_token_logprobs(prompt, [5, 80])
        await engine.load(tiny_model, 2)
        [again] = await engine.next_token_logprobs(prompt, [5, 80])
        assert old == pytest.approx(again, abs=1e-6) != pytest.approx(new, abs=0.01)

    with Server(tiny_model) as server:
        drive([server], body)
        assert server.service.scheduler.num_resets == 3
        assert not [each for each in server.asked("/pause") if "clear_cache" in each.query]


def test_on_a_cpu_the_head_of_a_tied_model_is_given_by_its_own_name(tiny_model: Path, larger: Path):
    from safetensors.torch import load_file, save_file

    async def body(engine: Engine) -> list[float]:
        await engine.load(larger, 1)
        (found,) = await engine.next_token_logprobs(PROMPT, [5, 80])
        return found

    head = load_file(larger / "model.safetensors")["model.embed_tokens.weight"]
    with Server(tiny_model) as server:
        expected = drive([server], body)
    with Server(tiny_model, Options(device="cpu")) as server:
        assert drive([server], body) != pytest.approx(expected, abs=0.01)
        save_file({"lm_head.weight": head}, larger / "tied.safetensors")
        assert drive([server], body) == pytest.approx(expected, abs=1e-5)
