"""Adapters on servers, as the engine vllm gives, names, forgets and breaks them off."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs, engines
from agrpo.errors import StaleInFlight
from agrpo.records.sampling import Sampling
from tests.engines.test_vllm_like import adapter
from tests.vllm_like import Do, Options, Server
from tests.vllm_like.driving import QUICK, requests_of

SERVED = Options(enable_lora=True, max_lora_rank=8, max_loras=3, runtime_lora_updating=True, step_seconds=0.005)


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model, SERVED) as server:
        yield server


@pytest.fixture
def versions(tmp_path: Path) -> list[Path]:
    """Folders of adapters, one a version."""
    first = adapter(tmp_path / "00000000-a", 4, 0.05)
    return [first, *(shutil.copytree(first, tmp_path / f"{version:08}-a") for version in range(1, 6))]


def drive(server: Server, body: Callable[[Engine], Awaitable[None]], max_staleness: int = 1) -> None:
    def version_of(label: str) -> int | None:
        return int(label.partition("@")[0]) if label.endswith("-a") else None

    async def main() -> None:
        needs = Needs(
            sampling=Sampling(max_completion_length=8),
            adapter_rank=4,
            max_staleness=max_staleness,
            version_of=version_of,
        )
        engine = engines.build("vllm", {**QUICK, "base_urls": [server.url]})(
            ModelSection(path=str(server.model)), needs
        )
        try:
            await body(engine)
        finally:
            await engine.close()

    asyncio.run(main())


def test_adapters_of_engines_before_leave_the_server_with_the_window(server: Server, versions: list[Path]):
    async def first(engine: Engine) -> None:
        for version in (0, 1, 2):
            await engine.load(versions[version], version)

    async def second(engine: Engine) -> None:
        for version in (3, 4):
            await engine.load(versions[version], version)

    held: list[list[str]] = []
    for body in (first, second):
        drive(server, body)
        held.append([name[0] for name in server.service.scheduler.network.adapters])
    assert held == [["1", "2"], ["3", "4"]]


def test_what_nobody_of_this_run_gave_stays(server: Server, versions: list[Path]):
    server.service.scheduler.add_adapter("0@foreign", str(versions[0]))
    server.service.scheduler.add_adapter("mine", str(versions[0]))

    async def body(engine: Engine) -> None:
        await engine.load(versions[5], 5)

    drive(server, body)
    assert [*server.service.scheduler.network.adapters] == ["0@foreign", "mine", "5@00000005-a"]


def test_a_server_that_lost_its_adapter_is_given_it_again_and_answers(server: Server, versions: list[Path]):
    async def body(engine: Engine) -> None:
        await engine.load(versions[1], 1)
        server.service.scheduler.network.unload_adapter("1@00000001-a")
        asking = asyncio.create_task(engine.complete(requests_of([1])))
        while not engine.behind:
            await asyncio.sleep(0.005)
        await engine.load(versions[1], 1)
        (turn,) = await asking
        assert turn.output_versions == [1] * 8

    drive(server, body)


@pytest.mark.parametrize("answer", [None, {"data": ["x"]}])
def test_adapters_are_forgotten_another_time_where_the_server_does_not_name_them(
    server: Server, versions: list[Path], answer: object
):
    async def body(engine: Engine) -> None:
        for version in (1, 2, 3):
            await engine.load(versions[version], version)
        # One look at the label, one whether the adapter is there, and then the one by which old ones are found.
        server.fault(Do.CHANGE, "/v1/models", first=3, change=lambda _: answer)
        await engine.load(versions[4], 4)

    drive(server, body)
    assert [name[0] for name in server.service.scheduler.network.adapters] == ["2", "3", "4"]


def test_a_request_whose_version_leaves_the_window_is_broken_off_and_ends_at_the_server(
    server: Server, versions: list[Path]
):
    async def body(engine: Engine) -> None:
        await engine.load(versions[0], 0)
        asking = asyncio.create_task(engine.complete(requests_of([1], stop_ids=(), max_completion_length=900)))
        while not server.service.scheduler.running:
            await asyncio.sleep(0.005)
        await engine.load(versions[1], 1)
        with pytest.raises(StaleInFlight, match=r"begun under version 0 was broken off: .*async.max_staleness = 0$"):
            await asking
        while server.service.scheduler.running:
            await asyncio.sleep(0.005)

    drive(server, body, max_staleness=0)
    assert server.service.scheduler.finished["abort"] == 1
