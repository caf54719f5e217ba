"""Several servers behind one engine: who is asked, what they sample, how they change weights together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.engines import Engine
from agrpo.errors import EngineError, EngineLost
from agrpo.records.pressure import Pressure
from agrpo.records.rollout import TurnRecord
from agrpo.records.seeds import derive_seed
from tests.vllm_like import Do, Options, Server
from tests.vllm_like.driving import drive, requests_of

GENERATE = "/inference/v1/generate"


@pytest.fixture
def two(tiny_model: Path) -> Iterator[list[Server]]:
    options = Options(step_seconds=0.005)
    with Server(tiny_model, options) as one, Server(tiny_model, options) as other:
        yield [one, other]


async def eight(engine: Engine, run_seed: int = 1, ticket: int = 5) -> list[TurnRecord]:
    seeds = [derive_seed(run_seed, ticket, rollout, 0) for rollout in range(8)]
    return await engine.complete(requests_of(seeds, max_completion_length=16))


def seeds_of(server: Server) -> list[int]:
    """Of the group's requests; a server is also tried with a token of its own."""
    asked = [each.body["sampling_params"] for each in server.asked(GENERATE)]
    return [params["seed"] for params in asked if params.get("seed")]


@pytest.mark.spec("K35", "A-109")
def test_two_replicas_sample_eight_texts_that_depend_on_the_seeds_alone(two: list[Server]):
    turns = drive(two, eight)
    halves = [seeds_of(server) for server in two]
    assert [len(half) for half in halves] == [4, 4]
    assert len({*halves[0], *halves[1]}) == 8
    assert len({tuple(turn.output_ids) for turn in turns}) == 8
    assert drive(two[:1], eight) == turns  # one server of its own, another day
    others = drive(two, lambda engine: eight(engine, run_seed=2))
    assert not {tuple(turn.output_ids) for turn in turns} & {tuple(turn.output_ids) for turn in others}


@pytest.mark.spec("K35")
def test_a_request_that_is_asked_again_keeps_its_seed_and_its_text(two: list[Server]):
    turns = drive(two, eight)
    for server in two:
        server.fault(Do.DROP, seed=derive_seed(1, 5, 2, 0))
    before = Counter(seed for server in two for seed in seeds_of(server))
    assert drive(two, eight) == turns
    asked = Counter(seed for server in two for seed in seeds_of(server)) - before
    assert len(asked) == 8
    assert asked[derive_seed(1, 5, 2, 0)] >= 2


def test_a_server_that_goes_away_leaves_its_requests_to_the_other(two: list[Server]):
    async def body(engine: Engine) -> list[TurnRecord]:
        asking = asyncio.create_task(eight(engine))
        while not two[0].service.scheduler.running:
            await asyncio.sleep(0.002)
        await asyncio.to_thread(two[0].close_port)
        return await asking

    right = drive(two[1:], eight)
    assert drive(two, body) == right


def test_all_servers_have_the_weights_before_any_goes_on(two: list[Server], tiny_model: Path):
    async def body(engine: Engine) -> None:
        await engine.load(tiny_model, 1)

    drive(two, body)
    named = [max(each.at for each in server.asked("/update_weight_version")) for server in two]
    resumed = [max(each.at for each in server.asked("/resume")) for server in two]
    assert max(named) < min(resumed)


def test_weights_that_one_server_refuses_are_served_by_none(two: list[Server], tiny_model: Path):
    async def body(engine: Engine) -> set[int]:
        await engine.load(tiny_model, 1)
        with pytest.raises(EngineError, match=r"version 2 did not reach server .*answered 500: no room"):
            await engine.load(tiny_model, 2)
        return {version for turn in await eight(engine) for version in turn.output_versions}

    two[1].fault(Do.STATUS, "/collective_rpc", first=3, text="no room")
    assert drive(two, body) == {1}
    assert [server.service.scheduler.label for server in two] == [f"1@{tiny_model.name}"] * 2
    assert not any(server.service.scheduler.paused for server in two)


def test_an_outage_longer_than_the_limit_ends_the_run(two: list[Server]):
    async def body(engine: Engine) -> None:
        for server in two:
            await asyncio.to_thread(server.close_port)
        with pytest.raises(
            EngineLost, match=r"no vLLM server has been there for \d+ s, and 1 s is the limit"
        ) as raised:
            await eight(engine)
        assert str(raised.value).endswith("Start them, then `agrpo resume` this run")
        assert all(server.url in str(raised.value) for server in two)

    drive(two, body, outage_seconds=1.0)


@pytest.mark.usefixtures("quick_looks")
def test_a_server_that_comes_back_without_the_weights_is_not_asked_until_it_has_them(
    two: list[Server], tiny_model: Path
):
    async def body(engine: Engine) -> None:
        await asyncio.to_thread(two[0].restart)
        await eight(engine)
        before = len(seeds_of(two[0]))
        while not engine.behind:
            await asyncio.sleep(0.02)
        await eight(engine)
        assert len(seeds_of(two[0])) == before
        await engine.load(tiny_model, 0)
        await eight(engine)
        assert len(seeds_of(two[0])) == before + 4

    drive(two, body)


@pytest.mark.usefixtures("quick_looks")
def test_a_server_that_somebody_else_gives_weights_ends_the_run(two: list[Server]):
    import httpx

    async def body(engine: Engine) -> None:
        httpx.post(two[0].url + "/update_weight_version", json={"new_version": "4@other"})
        with pytest.raises(EngineLost, match="was given the weights 4@other by somebody else"):
            while True:
                await asyncio.sleep(0.01)
                try:
                    await eight(engine)
                except EngineLost:
                    raise
                except EngineError:
                    continue  # sampled under weights of somebody else

    drive(two, body)


def test_pressure_is_the_fullest_cache_and_the_sum_of_what_runs(two: list[Server]):
    async def body(engine: Engine) -> None:
        asking = asyncio.create_task(engine.complete(requests_of(range(1, 9), stop_ids=(), max_completion_length=200)))
        while sum(len(server.service.scheduler.running) for server in two) < 8:
            await asyncio.sleep(0.002)
        pressure = await engine.pressure()
        asking.cancel()
        assert pressure is not None
        assert (pressure.running, pressure.queued, pressure.cache_tokens) == (8, 0, 2 * 4096 * 16)
        assert 0 < pressure.kv_usage < 0.02
        assert pressure.max_model_len == 1024

    drive(two, body)


@pytest.mark.spec("A-324")
def test_preemptions_of_a_server_count_from_its_first_word_on(two: list[Server]):
    one, late = two
    one.service.scheduler.preemptions, late.service.scheduler.preemptions = 7, 500
    late.fault(Do.STATUS, "/metrics")  # it is not heard of at the first poll

    async def body(engine: Engine) -> list[int]:
        found = [await engine.pressure(), await engine.pressure()]
        late.service.scheduler.preemptions += 3
        return [pressure.preemptions for pressure in [*found, await engine.pressure()] if pressure is not None]

    assert drive(two, body) == [0, 0, 3]


def test_while_no_server_can_be_asked_what_they_said_last_is_not_taken_for_new(two: list[Server]):
    async def body(engine: Engine) -> None:
        before = await engine.pressure()
        for server in two:
            server.fault(Do.STATUS, "/metrics")
        away, again = await engine.pressure(), await engine.pressure()
        assert before is not None and before.is_new
        assert away == replace(before, is_new=False)
        assert again is not None and again.is_new

    drive(two, body)


@pytest.mark.spec("A-320")
def test_requests_are_counted_that_are_asked_again_of_a_server_without_figures(tiny_model: Path):
    async def body(engine: Engine) -> Pressure | None:
        server.fault(Do.DROP)
        await engine.complete(requests_of([1]))
        return await engine.pressure()

    with Server(tiny_model, Options(has_metrics=False)) as server:
        assert drive([server], body) == Pressure(kv_usage=None, retries=1)
