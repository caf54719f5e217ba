"""What every engine promises. A new one is tested the day its file is added."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs, engines
from agrpo.errors import EngineError, MissingPackage
from agrpo.records.rollout import StopReason
from agrpo.records.sampling import CompletionRequest, Sampling
from tests.vllm_like import Options, Server

T = TypeVar("T")
PROMPT = [12, 40, 77, 101, 33]


@pytest.fixture(params=engines.names())
def engine_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(engine_name: str, tiny_model: Path) -> Callable[..., object]:
    """`ask(body)`: what `body(engine)` gives, for an engine that serves the tiny model as version 5.

    An engine of servers has one that speaks vLLM; `truncated`: it was started to return candidates.
    """

    def asked(body: Callable[[Engine], Awaitable[T]], *, load: bool = True, truncated: bool = False) -> T:
        if engine_name != "vllm":
            return asyncio.run(answered(body, {}, load=load, needs=Needs()))
        sampling = Sampling(top_k=6, max_completion_length=10) if truncated else Sampling(max_completion_length=10)
        with Server(tiny_model, Options(return_sampling_mask=truncated)) as server:
            settings = {"base_urls": [server.url], "start_seconds": 20.0}
            return asyncio.run(answered(body, settings, load=load, needs=Needs(sampling=sampling)))

    async def answered(
        body: Callable[[Engine], Awaitable[T]], settings: dict[str, object], *, load: bool, needs: Needs
    ) -> T:
        try:
            engine = engines.build(engine_name, settings)(ModelSection(path=str(tiny_model)), needs)
        except MissingPackage as error:
            pytest.skip(str(error))
        try:
            if load:
                await engine.load(tiny_model, 5)
            return await body(engine)
        finally:
            await engine.close()

    return asked


def requests_of(seeds: Iterable[int], prompt_ids: list[int] = PROMPT, **sampling: object) -> list[CompletionRequest]:
    settings = Sampling(**({"max_completion_length": 10} | sampling))
    return [
        CompletionRequest(prompt_ids=prompt_ids, seed=seed, sampling=settings, stop_ids=frozenset({1}))
        for seed in seeds
    ]


def test_one_turn_per_request_in_order(ask):
    requests = [request for length in (2, 5, 3) for request in requests_of(range(2), PROMPT[:length])]
    turns = ask(lambda engine: engine.complete(requests))
    assert [turn.prompt_ids for turn in turns] == [request.prompt_ids for request in requests]


def test_no_requests_give_no_turns(ask):
    assert ask(lambda engine: engine.complete([])) == []


def test_every_token_has_a_log_prob_and_the_loaded_version(ask):
    for turn in ask(lambda engine: engine.complete(requests_of(range(4)))):
        assert 1 <= len(turn.output_ids) <= 10
        assert len(turn.output_log_probs) == len(turn.output_ids)
        assert all(-math.inf < logprob <= 0 for logprob in turn.output_log_probs)
        assert turn.output_versions == [5] * len(turn.output_ids)


@pytest.mark.parametrize("most", [1, 3, 10])
def test_the_stop_reason_is_what_the_tokens_say(ask, most: int):
    for turn in ask(lambda engine: engine.complete(requests_of(range(8), max_completion_length=most))):
        assert 1 not in turn.output_ids[:-1]
        stopped = turn.output_ids[-1] == 1
        assert turn.stop_reason is (StopReason.STOP if stopped else StopReason.LENGTH)
        assert stopped or len(turn.output_ids) == most


def test_a_request_without_an_end_runs_to_its_limit(ask):
    endless = CompletionRequest(
        prompt_ids=PROMPT, seed=0, sampling=Sampling(max_completion_length=23), stop_ids=frozenset()
    )
    [turn] = ask(lambda engine: engine.complete([endless]))
    assert len(turn.output_ids) == 23
    assert turn.stop_reason is StopReason.LENGTH


def test_nothing_is_completed_before_the_first_load(ask):
    with pytest.raises(EngineError, match="no weights were loaded yet"):
        ask(lambda engine: engine.complete(requests_of([0])), load=False)


def test_tokens_sampled_after_a_load_carry_its_version(ask, tiny_model: Path):
    async def body(engine: Engine):
        await engine.load(tiny_model, 6)
        return await engine.complete(requests_of([0]))

    [turn] = ask(body)
    assert set(turn.output_versions) == {6}


def test_the_most_likely_tokens_are_kept_where_they_are_asked_for(ask):
    for turn in ask(lambda engine: engine.complete(requests_of(range(3), num_sampler_logprobs=4))):
        for logprob, top in zip(turn.output_log_probs, turn.output_sampler_logprobs, strict=True):
            assert len(top) == 4
            assert logprob <= max(top.values()) + 1e-6
            assert sum(map(math.exp, top.values())) <= 1 + 1e-6


@pytest.mark.spec("A-166")
def test_a_truncated_distribution_comes_with_its_candidates(ask):
    for turn in ask(lambda engine: engine.complete(requests_of(range(3), top_k=6, top_p=0.9)), truncated=True):
        for token, candidates in zip(turn.output_ids, turn.output_sampling_mask, strict=True):
            assert token in candidates
            assert len(candidates) == len({*candidates}) <= 6


def test_a_whole_distribution_comes_without_candidates(ask):
    for turn in ask(lambda engine: engine.complete(requests_of(range(3)))):
        assert turn.output_sampling_mask is None
        assert turn.output_sampler_logprobs is None


@pytest.mark.spec("K35")
def test_seeds_of_a_group_give_different_texts(ask):
    turns = ask(lambda engine: engine.complete(requests_of(range(8))))
    assert len({tuple(turn.output_ids) for turn in turns}) == 8


@pytest.mark.spec("K35")
def test_an_engine_that_can_reproduce_repeats_a_call_bit_for_bit(engine_name: str, ask):
    if not engines[engine_name].can_reproduce:
        pytest.skip(f"{engine_name} does not promise it")

    async def body(engine: Engine):
        call = requests_of(range(8), reproducible=True)
        alone = await engine.complete(call)
        crowded = await asyncio.gather(engine.complete(requests_of(range(5))), engine.complete(call))
        return alone, crowded[1]

    alone, crowded = ask(body)
    assert alone == crowded


def test_next_token_log_probs_are_those_of_a_distribution(ask):
    [logprobs] = ask(lambda engine: engine.next_token_logprobs(PROMPT, [0, 9, 200]))
    assert len(logprobs) == 3
    assert all(-math.inf < logprob <= 0 for logprob in logprobs)
    assert sum(map(math.exp, logprobs)) <= 1 + 1e-6


def test_a_closed_engine_refuses(ask):
    async def body(engine: Engine):
        await engine.close()
        await engine.complete(requests_of([0]))

    with pytest.raises(EngineError):
        ask(body)


def test_looking_at_the_engines_imports_no_torch():
    code = "import sys; from agrpo.engines import engines; [engines[name] for name in engines.names()]; "
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'vllm')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
