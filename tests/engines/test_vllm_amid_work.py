"""Servers that are paused, started again, silent or busy amid their work: what is asked of them, and what they serve then."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs, engines
from agrpo.engines.serving_vllm.endpoint import Endpoint, Unreachable
from agrpo.engines.serving_vllm.fleet import Fleet
from agrpo.errors import DeadlineExceeded, EngineError, EngineLost
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import Sampling
from tests.vllm_like import Do, Options, Server
from tests.vllm_like.driving import PROMPT, drive, requests_of

GENERATE = "/inference/v1/generate"
RELOAD = "/collective_rpc"


@pytest.fixture
def larger(changed_weights: Callable[..., Path]) -> Path:
    """The tiny model's weights, each a little larger."""

    def change(tensors: dict[str, Tensor]) -> None:
        for tensor in tensors.values():
            tensor.mul_(1.3)

    return changed_weights(change)


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model) as server:
        yield server


@pytest.fixture
def two(tiny_model: Path) -> Iterator[list[Server]]:
    with Server(tiny_model) as one, Server(tiny_model) as other:
        yield [one, other]


def standing(server: Server) -> tuple[str, bool]:
    return server.service.scheduler.label, server.service.scheduler.paused


def asked_seeds(server: Server) -> list[int]:
    return [each.body["sampling_params"].get("seed") for each in server.asked(GENERATE)]


def post(server: Server, path: str) -> None:
    """As whoever else drives the server would."""
    urllib.request.urlopen(urllib.request.Request(server.url + path, data=b"", method="POST")).close()


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not fact():
            await asyncio.sleep(0.005)


def long_requests(engine: Engine, seeds: range, **settings: Any) -> asyncio.Task[list[TurnRecord]]:
    return asyncio.create_task(engine.complete(requests_of(seeds, stop_ids=(), max_completion_length=40, **settings)))


def test_a_server_found_paused_under_the_right_label_is_loaded_and_goes_on(server: Server, tiny_model: Path):
    """Its generator was killed between the label and the resume."""
    label = f"0@{tiny_model.name}"
    server.service.scheduler.label, server.service.scheduler.paused = label, True

    async def body(engine: Engine) -> list[int]:
        (turn,) = await engine.complete(requests_of([1]))
        return turn.output_versions

    assert drive([server], body) == [0] * 8
    assert standing(server) == (label, False)
    assert len(server.asked(RELOAD)) == 1


@pytest.mark.usefixtures("quick_looks")
def test_a_server_that_stays_paused_is_found_so_loaded_and_goes_on(server: Server, tiny_model: Path):
    async def body(engine: Engine) -> list[int]:
        server.service.scheduler.paused = True
        waiting = asyncio.create_task(engine.complete(requests_of([1])))
        await until(lambda: engine.behind)
        await engine.load(tiny_model, 0)
        return (await waiting)[0].output_versions

    assert drive([server], body) == [0] * 8
    assert len(server.asked(RELOAD)) == 2


@pytest.mark.parametrize("backend", [None, "nccl"])
def test_a_server_that_cannot_be_resumed_is_asked_for_nothing_until_it_was_loaded_again(
    tiny_model: Path, larger: Path, backend: str | None
):
    options = Options(weight_transfer=backend)

    async def body(engine: Engine, one: Server, other: Server) -> None:
        other.fault(Do.STATUS, "/resume", times=None, text="out of luck")
        with pytest.raises(EngineError, match=r"resume failed .*out of luck; it stays paused"):
            await engine.load(larger, 1)
        assert (standing(one), standing(other)) == ((f"0@{tiny_model.name}", False), ("default", True))
        before = len(other.asked(GENERATE))
        await engine.complete(requests_of(range(4)))
        assert len(other.asked(GENERATE)) == before
        other.faults.clear()
        assert engine.behind
        await engine.load(larger, 1)
        assert [standing(server) for server in (one, other)] == [(f"1@{larger.name}", False)] * 2

    with Server(tiny_model, options) as one, Server(tiny_model, options) as other:
        drive([one, other], lambda engine: body(engine, one, other))


ODD_ENDS: list[tuple[Do, dict[str, Any]]] = [
    (Do.STATUS, {"status": 400, "text": "no"}),
    (Do.STATUS, {"status": 401, "text": "Unauthorized"}),
    (Do.HTML, {"status": 200}),
]


@pytest.mark.parametrize(("do", "settings"), ODD_ENDS)
def test_a_load_that_a_refusal_or_a_web_page_ends_leaves_no_server_paused(
    two: list[Server], tiny_model: Path, larger: Path, do: Do, settings: dict[str, Any]
):
    async def body(engine: Engine) -> None:
        for path in ("/pause", RELOAD, "/update_weight_version", "/resume"):
            two[1].fault(do, path, times=2 if path == "/resume" else 1, **settings)
            with pytest.raises(EngineError, match=r"^version 1 did not reach server .*it serves 0@\S+ again"):
                await engine.load(larger, 1)
            two[1].faults.clear()
            assert [standing(server) for server in two] == [(f"0@{tiny_model.name}", False)] * 2

    drive(two, body)


@pytest.mark.parametrize("answer", [None, {"paused": True}])
def test_a_load_amid_which_a_server_answers_in_another_shape_leaves_none_paused(
    two: list[Server], tiny_model: Path, larger: Path, answer: Any
):
    told: list[Any] = []

    def odd_once(document: Any) -> Any:
        if not document["is_paused"] or told:
            return document
        told.append(document)
        return answer

    async def body(engine: Engine) -> None:
        two[1].fault(Do.CHANGE, "/is_paused", times=None, change=odd_once)
        with pytest.raises(EngineError, match=r"label failed .*its answer is not vLLM's"):
            await engine.load(larger, 1)
        assert [standing(server) for server in two] == [(f"0@{tiny_model.name}", False)] * 2
        await engine.load(larger, 1)

    drive(two, body)


@pytest.mark.parametrize("seen", [False, True])
def test_a_server_started_again_between_its_load_and_its_label_is_not_called_what_it_has_not(
    two: list[Server], larger: Path, request: pytest.FixtureRequest, seen: bool
):
    """`seen`: somebody has looked at the new start before the label was due."""
    if seen:
        request.getfixturevalue("quick_looks")

    async def body(engine: Engine) -> list[list[float]]:
        two[0].fault(Do.DELAY, RELOAD, seconds=20.0)
        loads = len(two[1].asked(RELOAD))
        loading = asyncio.create_task(engine.load(larger, 1))
        await until(lambda: [each.status for each in two[1].asked(RELOAD)[loads:]] == [200])
        await asyncio.to_thread(two[1].restart)
        looks = len(two[1].asked("/weight_info", "GET"))
        await until(lambda: not seen or len(two[1].asked("/weight_info", "GET")) > looks + 1)
        two[0].faults.clear()
        await loading
        assert standing(two[1])[0] == "default"
        await engine.load(larger, 1)
        return await engine.next_token_logprobs(PROMPT, [5, 80])

    one, other = drive(two, body, load_seconds=30.0)
    assert one == pytest.approx(other, abs=1e-6)


def test_a_resume_that_stumbles_once_breaks_off_no_request(tiny_model: Path, larger: Path):
    async def body(engine: Engine) -> list[TurnRecord]:
        asking = long_requests(engine, range(1, 9))
        await until(lambda: slow.service.scheduler.generated >= 80)
        slow.fault(Do.STATUS, "/resume", text="out of luck")
        await engine.load(larger, 1)
        return await asking

    with Server(tiny_model, Options(step_seconds=0.01)) as slow:
        turns = drive([slow], body)
        asked = asked_seeds(slow)
    assert [{*turn.output_versions} for turn in turns] == [{0, 1}] * 8
    assert [asked.count(seed) for seed in range(1, 9)] == [1] * 8


@pytest.mark.usefixtures("quick_looks", "short_looks")
def test_a_server_that_is_silent_about_itself_keeps_what_it_works_on(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
):
    async def body(engine: Engine) -> list[TurnRecord]:
        asking = long_requests(engine, range(1, 9), request_timeout_seconds=60.0)
        await until(lambda: slow.service.scheduler.generated >= 8)
        for path in ("/health", "/weight_info"):
            slow.fault(Do.HANG, path, times=None)
        await asyncio.to_thread(post, slow, "/pause?mode=keep")
        await until(lambda: "is gone" in caplog.text)
        await asyncio.to_thread(post, slow, "/resume")
        return await asking

    with Server(tiny_model, Options(step_seconds=0.01)) as slow, caplog.at_level(logging.WARNING):
        turns = drive([slow], body)
        asked = asked_seeds(slow)
    assert [len(turn.output_ids) for turn in turns] == [40] * 8
    assert [asked.count(seed) for seed in range(1, 9)] == [1] * 8


@pytest.mark.usefixtures("quick_looks")
def test_no_outage_is_counted_while_a_server_that_came_back_is_loaded(server: Server, larger: Path):
    async def body(engine: Engine) -> list[int]:
        await engine.load(larger, 1)
        server.fault(Do.DELAY, RELOAD, seconds=2.0)
        await asyncio.to_thread(server.restart)
        asking = asyncio.create_task(engine.complete(requests_of([1])))
        await until(lambda: engine.behind)
        await engine.load(larger, 1)
        return (await asking)[0].output_versions

    assert drive([server], body, outage_seconds=1.0, load_seconds=10.0) == [1] * 8


def test_a_server_whose_device_is_not_known_is_sent_no_seeds(tiny_model: Path, larger: Path):
    """On a CPU, one that samples with a seed dies of a load."""

    async def body(engine: Engine) -> list[TurnRecord]:
        asking = long_requests(engine, range(1, 5))
        await until(lambda: slow.service.scheduler.generated >= 8)
        await engine.load(larger, 1)
        return await asking

    with Server(tiny_model, Options(device="cpu", step_seconds=0.01)) as slow:
        slow.fault(Do.STATUS, "/server_info", times=None, text="no pip")
        turns = drive([slow], body)
        assert {*asked_seeds(slow)} - {0} == {
            None
        }  # 0: a token of the check at the start, amid which nothing is loaded
        assert slow.is_open
    assert [{*turn.output_versions} for turn in turns] == [{0, 1}] * 4


def test_a_push_that_was_left_open_is_ended_before_weights_are_read(tiny_model: Path, larger: Path):
    async def body(engine: Engine) -> None:
        for path in ("/pause?mode=keep", "/start_weight_update"):
            await asyncio.to_thread(post, server, path)
        begun = len(server.requests)
        await engine.load(larger, 1)
        calls = [(each.path, each.status) for each in server.requests[begun:] if each.method == "POST"]
        assert calls.index(("/finish_weight_update", 200)) < calls.index((RELOAD, 200))

    with Server(tiny_model, Options(weight_transfer="nccl")) as server:
        drive([server], body)


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("status", [408, 425, 429, 503])
def test_a_server_that_asks_to_be_asked_later_is_asked_until_the_requests_time_is_over(server: Server, status: int):
    async def body(engine: Engine) -> int:
        (turn,) = await engine.complete(requests_of([1]))
        return len(turn.output_ids)

    async def in_vain(engine: Engine) -> None:
        with pytest.raises(EngineError, match=f"answered {status}: busy"):
            await engine.complete(requests_of([1], request_timeout_seconds=0.3))

    server.fault(Do.STATUS, seed=1, times=12, status=status, text="busy")
    assert drive([server], body) == 8
    server.faults.clear()
    server.fault(Do.STATUS, seed=1, times=None, status=status, text="busy")
    drive([server], in_vain)


@pytest.mark.usefixtures("short_pauses")
def test_a_page_that_is_not_found_is_asked_for_again_where_the_model_is_served(server: Server):
    async def body(engine: Engine) -> int:
        server.fault(Do.STATUS, seed=1, status=404, text="Not Found")
        (turn,) = await engine.complete(requests_of([1]))
        return len(turn.output_ids)

    assert drive([server], body) == 8
    assert asked_seeds(server).count(1) == 2


@pytest.mark.usefixtures("short_pauses")
def test_a_model_that_is_served_no_more_ends_the_run(server: Server):
    async def body(engine: Engine) -> None:
        server.fault(Do.STATUS, seed=1, times=None, status=404, text="The model `x` does not exist.")
        server.fault(Do.CHANGE, "/v1/models", times=None, change=lambda _: {"data": [{"id": "another"}]})
        with pytest.raises(EngineLost, match=r"it serves no model under that name any more: set engine\.served_model"):
            await engine.complete(requests_of([1]))

    drive([server], body)


@pytest.mark.usefixtures("short_pauses")
def test_a_probe_without_an_answer_names_the_limit_that_it_has(server: Server):
    async def body(engine: Engine) -> None:
        server.fault(Do.HANG, times=None)
        with pytest.raises(
            DeadlineExceeded, match=rf"no answer from {server.url} within 0.2 s \(engine.load_seconds\)"
        ):
            await engine.next_token_logprobs(PROMPT, [5])

    drive([server], body, load_seconds=0.2)


@pytest.mark.usefixtures("quick_looks")
def test_the_time_that_servers_have_to_start_begins_when_they_are_first_needed():
    async def main() -> None:
        fleet = Fleet(list, Server, lambda _: None, lambda _: None, start_seconds=0.3, outage_seconds=9.0)  # type: ignore[arg-type]
        await asyncio.sleep(0.35)
        began = time.monotonic()
        with pytest.raises(EngineLost, match=r"0.3 s is the limit \(engine.start_seconds\): none is named yet"):
            await fleet.await_any(list)
        assert time.monotonic() - began >= 0.3
        await fleet.close()

    asyncio.run(main())


@pytest.mark.usefixtures("quick_looks")
def test_servers_are_not_missed_before_they_were_looked_at(server: Server, tiny_model: Path):
    def urls() -> list[str]:
        time.sleep(0.3)
        return [server.url]

    async def main() -> None:
        needs = Needs(servers=urls, sampling=Sampling(max_completion_length=8))
        engine = engines.build("vllm", {"serve": True, "start_seconds": 0.1})(ModelSection(path=str(tiny_model)), needs)
        try:
            await engine.load(tiny_model, 0)
        finally:
            await engine.close()

    asyncio.run(main())


def test_a_connection_that_is_closed_while_a_name_is_looked_up_cancels_nobody(monkeypatch: pytest.MonkeyPatch):
    looked_up: list[str] = []

    async def main() -> None:
        async def never(*_: Any, **__: Any) -> Any:
            looked_up.append("")
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
        endpoint = Endpoint("http://localhost:1")
        asking = asyncio.create_task(endpoint.text("/health", 10.0))
        await until(lambda: looked_up)
        await endpoint.reconnect()
        with pytest.raises(Unreachable, match="its connection was closed while it was made"):
            await asking
        gone = asyncio.create_task(endpoint.text("/health", 10.0))
        await until(lambda: len(looked_up) == 2)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await endpoint.close()

    asyncio.run(main())
