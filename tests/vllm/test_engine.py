"""The engine against a real vLLM: what it samples is what transformers would, before, amid and after new weights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Needs
from agrpo.engines.serving_vllm.engine import VllmEngine
from agrpo.engines.transformers import Transformers
from agrpo.engines.vllm import Vllm
from agrpo.errors import EngineError, EngineLost, PromptRefused
from agrpo.records.rollout import StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest, Sampling
from agrpo.stages.process import Supervisor
from agrpo.weights.filesystem import write_weights
from tests.processes import until
from tests.vllm.conftest import MAX_MODEL_LEN, START_SECONDS, RealServer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = pytest.mark.vllm

T = TypeVar("T")
PROMPT = [40, 77, 101, 33, 58, 90, 12, 66]
SAMPLING = Sampling(max_completion_length=24, num_sampler_logprobs=4, request_timeout_seconds=60.0)


@pytest.fixture
def ask(vllm_server: RealServer) -> Callable[..., object]:
    """`ask(body)`: what `body(engine)` gives, for an engine over the shared server."""

    def asked(body: Callable[[VllmEngine], Awaitable[T]], sampling: Sampling = SAMPLING) -> T:
        return driven(vllm_server.url, vllm_server.model, body, sampling)

    return asked


def driven(url: str, model: Path, body: Callable[[VllmEngine], Awaitable[T]], sampling: Sampling = SAMPLING) -> T:
    async def main() -> T:
        part = Vllm(base_urls=[url], load_seconds=60.0, start_seconds=60.0, outage_seconds=60.0)
        engine = VllmEngine(part, ModelSection(path=str(model)), Needs(sampling=sampling))
        try:
            return await body(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


@pytest.fixture(scope="session")
def policy(vllm_model: Path) -> PreTrainedModel:
    from agrpo.policy.model import load_policy

    return load_policy(ModelSection(path=str(vllm_model)))


@pytest.fixture
def published(policy: PreTrainedModel, tmp_path: Path) -> Callable[[int], Path]:
    """`published(n)`: a folder of weights, different for each n."""
    return lambda number: changed(policy, tmp_path, number)


def changed(policy: PreTrainedModel, place: Path, number: int) -> Path:
    """A folder with the policy's weights and some noise of this seed, as they are published."""
    import torch

    folder = place / f"{number:08d}-{place.name}"
    kept = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    write_weights(folder, policy, with_head=True)
    policy.load_state_dict(kept)
    return folder


def requests_of(number: int, sampling: Sampling = SAMPLING) -> list[CompletionRequest]:
    return [
        CompletionRequest(prompt_ids=PROMPT, seed=seed, sampling=sampling, stop_ids=frozenset({1}))
        for seed in range(number)
    ]


async def logprobs_by_transformers(folder: Path, model: Path, turn: TurnRecord) -> list[float]:
    """Of the turn's tokens, each after those before it."""
    engine = Transformers(threads=1)(ModelSection(path=str(model)))
    try:
        await engine.load(folder, 0)
        whole = [*turn.prompt_ids, *turn.output_ids]
        return [
            (await engine.next_token_logprobs(whole[:place], [whole[place]]))[0][0]
            for place in range(len(turn.prompt_ids), len(whole))
        ]
    finally:
        await engine.close()


async def differences(engine: VllmEngine, published: Callable[[int], Path], model: Path) -> list[float]:
    """Of the log-probs of what was sampled under three versions from what transformers says of them, in nats."""
    found: list[float] = []
    for version in (1, 2, 3):
        folder = published(version)
        await engine.load(folder, version)
        [turn] = await engine.complete(requests_of(1))
        assert set(turn.output_versions) == {version}
        expected = await logprobs_by_transformers(folder, model, turn)
        found += [abs(one - other) for one, other in zip(turn.output_log_probs, expected, strict=True)]
    return found


def test_its_log_probs_are_those_of_transformers_after_every_publish(ask, published, vllm_model: Path):
    found = ask(lambda engine: differences(engine, published, vllm_model))
    assert max(found) < 2e-5
    assert sum(found) / len(found) < 1e-5


@pytest.mark.timeout(400)
def test_so_are_those_of_a_model_whose_head_is_its_own(vllm_run, vllm_model: Path, tmp_path: Path):
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from agrpo.policy.model import load_policy

    untied = tmp_path / "untied"
    config = Qwen3Config.from_pretrained(vllm_model, tie_word_embeddings=False)
    Qwen3ForCausalLM(config).save_pretrained(untied)
    AutoTokenizer.from_pretrained(vllm_model).save_pretrained(untied)
    policy = load_policy(ModelSection(path=str(untied)))
    folder = vllm_run(tmp_path, model={"path": str(untied)})
    with Supervisor(folder.url, folder.local / "logs") as supervisor:
        supervisor.start("server")
        until(folder.server_urls, START_SECONDS)
        [url] = folder.server_urls()
        found = driven(
            url, untied, lambda engine: differences(engine, lambda number: changed(policy, tmp_path, number), untied)
        )
    assert max(found) < 2e-5
    assert sum(found) / len(found) < 1e-5


@pytest.mark.slow
def test_fifty_publishes_and_their_probes_fail_none_of_the_requests_in_flight(ask, published):
    folders = [published(number) for number in range(3)]
    ended: list[TurnRecord] = []

    async def keep_asking(engine: VllmEngine, until: asyncio.Event) -> None:
        while not until.is_set():
            sampling = Sampling(max_completion_length=64, num_sampler_logprobs=8)
            ended.extend(await engine.complete(requests_of(1, sampling)))

    async def body(engine: VllmEngine) -> None:
        await engine.load(folders[0], 100)
        done = asyncio.Event()
        asking = [asyncio.ensure_future(keep_asking(engine, done)) for _ in range(32)]
        for version in range(101, 151):
            await engine.load(folders[version % 3], version)
            if version % 5 == 0:
                await engine.next_token_logprobs(PROMPT, [5, 6, 7])
        done.set()
        await asyncio.gather(*asking)
        assert (await engine.pressure()).retries == 0

    ask(body)
    assert len(ended) >= 32
    assert all(len(turn.output_versions) == len(turn.output_ids) for turn in ended)
    assert all(len(top) == 8 for turn in ended for top in turn.output_sampler_logprobs or [{}])
    assert all(turn.output_versions == sorted(turn.output_versions) for turn in ended)
    assert any(len({*turn.output_versions}) > 1 for turn in ended)


def test_what_nobody_awaits_is_ended_at_the_server(ask, published):
    endless = [
        CompletionRequest(
            prompt_ids=PROMPT, seed=seed, sampling=Sampling(max_completion_length=480), stop_ids=frozenset()
        )
        for seed in range(8)
    ]

    async def running(engine: VllmEngine, expected: Callable[[int], bool]) -> bool:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            pressure = await engine.pressure()
            if pressure is not None and expected(pressure.running):
                return True
        return False

    async def body(engine: VllmEngine) -> tuple[bool, bool]:
        await engine.load(published(7), 200)
        asking = asyncio.ensure_future(engine.complete(endless))
        begun = await running(engine, lambda number: number > 0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return begun, await running(engine, lambda number: number == 0)

    assert ask(body) == (True, True)


def test_a_completion_ends_where_the_servers_context_ends(ask, published):
    long = CompletionRequest(
        prompt_ids=PROMPT * 60, seed=1, sampling=Sampling(max_completion_length=300), stop_ids=frozenset()
    )

    async def body(engine: VllmEngine) -> TurnRecord:
        await engine.load(published(8), 210)
        return (await engine.complete([long]))[0]

    turn = ask(body, Sampling(max_completion_length=300))
    assert len(turn.output_ids) == MAX_MODEL_LEN - len(long.prompt_ids)
    assert turn.stop_reason is StopReason.LENGTH


@pytest.mark.parametrize("prompt_ids", [[], [5] * MAX_MODEL_LEN, [999_999]])
def test_a_prompt_that_no_server_can_take_is_refused_alone(ask, published, prompt_ids: list[int]):
    bad = CompletionRequest(prompt_ids=prompt_ids, seed=1, sampling=SAMPLING, stop_ids=frozenset({1}))

    async def body(engine: VllmEngine) -> int:
        await engine.load(published(9), 220)
        with pytest.raises(PromptRefused):
            await engine.complete([bad])
        return len(await engine.complete(requests_of(2)))

    assert ask(body) == 2


def test_everything_that_a_server_lacks_is_named_at_once_with_its_flag(ask, published, tiny_model: Path):
    sampling = Sampling(top_k=8, num_sampler_logprobs=30, max_completion_length=4096)
    with pytest.raises(EngineLost) as lost:
        ask(lambda engine: engine.load(published(1), 1), sampling)
    told = str(lost.value)
    for flag in ("--max-logprobs 31", "--return-sampling-mask", "--max-model-len"):
        assert flag in told
    assert "vLLM's CPU build cannot" in told


@pytest.mark.parametrize("damage", ["nothing there", "half a file", "another shape"])
def test_weights_that_cannot_be_loaded_leave_the_server_with_those_before(ask, published, tmp_path: Path, damage: str):
    import torch
    from safetensors.torch import load_file, save_file

    good, bad = published(11), published(12)
    file = bad / "model.safetensors"
    if damage == "nothing there":
        file.unlink()
        (bad / "tied.safetensors").unlink()
    elif damage == "half a file":
        file.write_bytes(file.read_bytes()[:1000])
    else:
        extra = load_file(file) | {"model.layers.7.mlp.up_proj.weight": torch.zeros(3, 3)}
        save_file(extra, file, metadata={"format": "pt"})

    async def body(engine: VllmEngine) -> tuple[str, list[int]]:
        await engine.load(good, 300)
        with pytest.raises(EngineError) as failed:
            await engine.load(bad, 301)
        [turn] = await engine.complete(requests_of(1))
        return str(failed.value), turn.output_versions

    told, versions = ask(body)
    assert "version 301 did not reach server" in told
    assert "load failed" in told
    assert told.endswith(f"it serves 300@{good.name} again")
    assert {*versions} == {300}
