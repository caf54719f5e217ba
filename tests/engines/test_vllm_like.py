"""The server that tests run against: what it answers is what a real vLLM 0.32 answered, and what it computes is true."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engines.asking import prompt_of
from tests.vllm_like import Do, Options, Server

REAL = json.loads((Path(__file__).parents[1] / "vllm_like" / "real_answers.json").read_text())
"""Requests to a real server (CPU build, a tiny Qwen3 in float32, 512 positions) and its answers, in order."""
GENERATE = "/inference/v1/generate"


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model, Options(served_model_name="m", max_model_len=512, runtime_lora_updating=True)) as server:
        yield server


@pytest.fixture
def weights(tiny_model: Path, tmp_path: Path) -> Path:
    """Folders to reload: the first weights, larger ones, and some that cannot be loaded."""
    first = load_file(tiny_model / "model.safetensors")
    larger = {name: tensor * 1.3 for name, tensor in first.items()}
    for name, tensors in {"old": first, "new": larger, "extra": {**larger, "model.more": torch.zeros(2)}}.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    (tmp_path / "empty").mkdir()
    shutil.copytree(tmp_path / "new", tmp_path / "torn")
    torn = tmp_path / "torn" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:1000])
    return tmp_path


def shape(document: Any) -> Any:
    """Keys and types; of a list, those of its first thing."""
    if isinstance(document, dict):
        return {name.partition(":")[0]: shape(value) for name, value in document.items() if name != "permission"}
    return [shape(each) for each in document[:1]] if isinstance(document, list) else type(document).__name__


def comparable(document: Any) -> Any:
    """What of an answer is the same for any model: all of an error's text, but for what a schema's error quotes."""
    if not isinstance(document, dict) or "error" not in document:
        return document if not isinstance(document, dict) or len(document) == 1 else shape(document)
    error = document["error"]
    return {**error, "message": ""} if isinstance(error, dict) and error["type"] == "Bad Request" else document


def test_answers_are_those_of_a_real_server(server: Server, weights: Path):
    with httpx.Client(base_url=server.url) as client:
        for case in REAL:
            body = json.loads(json.dumps(case["body"]).replace("ROOT", str(weights)))
            answer = ask(client, case, body)
            assert (answer.status_code, answer.headers.get("content-type")) == (case["status"], case["type"]), case
            found = answer.json() if answer.headers.get("content-type") == "application/json" else answer.text
            assert comparable(found) == comparable(case["answer"]), case


def ask(client: httpx.Client, case: dict[str, Any], body: Any) -> httpx.Response:
    """Once more where the connection was dropped after the answer before, as a real server does after a 500."""
    sent = {"content": body} if isinstance(body, str) else {} if body is None else {"json": body}
    try:
        return client.request(case["method"], case["path"], **sent)
    except httpx.TransportError:
        return client.request(case["method"], case["path"], **sent)


def generate(url: str, prompt: list[int], **params: Any) -> Any:
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 8, "logprobs": 1, "ignore_eos": True} | params}
    answer = httpx.post(url + GENERATE, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def reference(folder: Path, ids: list[int]) -> torch.Tensor:
    """Log-probs `[T, V]` after each token, by one plain forward."""
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0].log_softmax(-1)


def difference(folder: Path, prompt: list[int], choice: Any) -> float:
    """Largest, of the log-probs of a completion from a plain forward's."""
    ids = choice["token_ids"]
    expected = reference(folder, prompt + ids)[len(prompt) - 1 : -1]
    told = [place["logprob"] for place in choice["logprobs"]["content"]]
    return max(abs(expected[place, token].item() - told[place]) for place, token in enumerate(ids))


def test_log_probs_are_the_models(server: Server, tiny_model: Path):
    prompt = prompt_of(50)
    choice = generate(server.url, prompt)
    assert difference(tiny_model, prompt, choice) < 1e-5


def test_a_seed_repeats_and_another_does_not(server: Server):
    one, same, other = (generate(server.url, prompt_of(20), seed=seed)["token_ids"] for seed in (5, 5, 6))
    assert one == same != other


def test_the_sampled_token_takes_a_place_among_the_most_likely(server: Server):
    for place in generate(server.url, prompt_of(9), logprobs=3)["logprobs"]["content"]:
        assert place["top_logprobs"][0] == {name: place[name] for name in ("token_id", "logprob", "rank")}
        assert len(place["top_logprobs"]) == 3


def test_what_cannot_be_sampled_is_reported_with_a_number_and_left_out_of_the_candidates(tiny_model: Path):
    with Server(tiny_model, Options(return_sampling_mask=True)) as server:
        choice = generate(server.url, prompt_of(9), top_k=2, logprobs=4)
    for place, mask in zip(choice["logprobs"]["content"], choice["sampling_mask"], strict=True):
        assert place["token_id"] in mask
        assert len(mask) == 2
        assert sum(entry["logprob"] == -9999.0 for entry in place["top_logprobs"]) == 2


@pytest.fixture
def slow(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model, Options(step_seconds=0.01)) as server:
        yield server


def test_what_runs_in_a_pause_goes_on_under_the_weights_that_came(slow: Server, tiny_model: Path, weights: Path):
    async def body() -> Any:
        async with httpx.AsyncClient(base_url=slow.url) as client:
            params = {"max_tokens": 40, "logprobs": 1, "ignore_eos": True, "seed": 3}
            running = asyncio.create_task(
                client.post(GENERATE, json={"token_ids": prompt_of(40), "sampling_params": params})
            )
            while slow.service.scheduler.generated < 10:
                await asyncio.sleep(0.005)
            await publish(client, weights / "new", "1@new")
            return (await running).json()["choices"][0]

    choice = asyncio.run(body())
    (old, new) = choice["weight_versions"]
    assert (old["version"], old["start"], new["version"], new["end"]) == ("default", 0, "1@new", 40)
    assert old["end"] == new["start"] >= 10
    larger = tiny_like(tiny_model, weights / "new")
    ids = prompt_of(40) + choice["token_ids"]
    for span, folder in ((old, tiny_model), (new, larger)):
        expected = reference(folder, ids)[39:-1]
        for place in range(span["start"], span["end"]):
            told = choice["logprobs"]["content"][place]
            assert abs(expected[place, told["token_id"]].item() - told["logprob"]) < 1e-5


async def publish(client: httpx.AsyncClient, folder: Path, label: str) -> None:
    await client.post("/pause?mode=keep")
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    assert (await client.post("/collective_rpc", json=body)).status_code == 200
    await client.post("/update_weight_version", json={"new_version": label})
    await client.post("/resume")


def tiny_like(model: Path, weights: Path) -> Path:
    """A whole model folder with these weights."""
    for file in model.iterdir():
        if file.name != "model.safetensors":
            shutil.copy(file, weights / file.name)
    return weights


def test_on_a_cpu_a_tied_head_keeps_its_old_weights_unless_it_is_named(tiny_model: Path, weights: Path):
    folder = tiny_like(tiny_model, weights / "new")
    tensors = load_file(folder / "model.safetensors")
    with Server(tiny_model, Options(device="cpu")) as server, httpx.Client(base_url=server.url) as client:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        assert client.post("/collective_rpc", json=body).status_code == 200
        wrong = difference(folder, prompt_of(30), generate(server.url, prompt_of(30)))
        save_file({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "tied.safetensors")
        client.post("/pause?mode=keep")
        assert client.post("/collective_rpc", json=body).status_code == 200
        client.post("/resume")
        (folder / "tied.safetensors").unlink()
        right = difference(folder, prompt_of(30), generate(server.url, prompt_of(30)))
    assert wrong > 0.1
    assert right < 1e-5


def adapter(place: Path, rank: int, scale: float) -> Path:
    """A LoRA of two layers' query and output projections, as PEFT writes it."""
    generator = torch.Generator().manual_seed(rank)
    halves: dict[str, torch.Tensor] = {}
    for layer in range(2):
        for module in ("q_proj", "o_proj"):  # 64 wide on both sides
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            halves[f"{name}.lora_A.weight"] = torch.randn(rank, 64, generator=generator)
            halves[f"{name}.lora_B.weight"] = torch.randn(64, rank, generator=generator) * scale
    place.mkdir()
    save_file(halves, place / "adapter_model.safetensors")
    (place / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 2 * rank}))
    return place


def merged(model: Path, adapter: Path, place: Path) -> Path:
    """The model with the adapter's product added to its weights."""
    tensors, halves = load_file(model / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, half in halves.items():
        if "lora_A" in name:
            weight = name.removeprefix("base_model.model.").replace("lora_A.", "")
            tensors[weight] = tensors[weight] + 2.0 * halves[name.replace("lora_A", "lora_B")] @ half
    place.mkdir()
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return tiny_like(model, place)


def test_an_adapter_is_served_under_its_name_beside_the_base(tiny_model: Path, tmp_path: Path):
    small, large = adapter(tmp_path / "small", 8, 0.05), adapter(tmp_path / "large", 16, 0.05)
    options = Options(enable_lora=True, max_lora_rank=8, runtime_lora_updating=True)
    with Server(tiny_model, options) as server, httpx.Client(base_url=server.url) as client:
        answers = [
            client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})
            for name, path in (("a", small), ("a", small), ("b", tmp_path / "none"), ("b", large))
        ]
        body = {"model": "a", "token_ids": prompt_of(20), "sampling_params": {"max_tokens": 8, "logprobs": 1}}
        choice = client.post(GENERATE, json=body).json()["choices"][0]
        assert difference(tiny_model, prompt_of(20), generate(server.url, prompt_of(20))) < 1e-5
        gone = [client.post("/v1/unload_lora_adapter", json={"lora_name": "a"}).status_code for _ in range(2)]
        assert client.post(GENERATE, json=body).status_code == 404
    assert [answer.status_code for answer in answers] == [200, 400, 404, 500]
    assert answers[0].text == "Success: LoRA adapter 'a' added successfully."
    assert answers[2].json()["error"]["message"] == "Loading lora b failed: No adapter found for <path>"
    assert "LoRA rank 16 is greater than max_lora_rank 8." in answers[3].json()["error"]["message"]
    assert gone == [200, 404]
    assert difference(merged(tiny_model, small, tmp_path / "merged"), prompt_of(20), choice) < 1e-5


def test_the_first_forward_after_a_failed_reload_ends_the_server(tiny_model: Path, weights: Path):
    with Server(tiny_model) as server, httpx.Client(base_url=server.url) as client:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(weights / "torn")}}
        assert client.post("/collective_rpc", json=body).status_code == 500
        answer = httpx.post(server.url + GENERATE, json={"token_ids": [5], "sampling_params": {"max_tokens": 2}})
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")
        until_refused(server.url)
        server.restart()
        assert httpx.get(server.url + "/weight_info").json() == {"weight_version": "default"}
        assert len(generate(server.url, [5])["token_ids"]) == 8


def until_refused(url: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            httpx.get(url + "/health")
        except httpx.TransportError:
            return
        time.sleep(0.02)
    raise AssertionError("the server goes on")


def test_a_client_that_goes_away_ends_its_request(slow: Server):
    async def body() -> None:
        params = {"max_tokens": 900, "ignore_eos": True}
        with pytest.raises(httpx.TimeoutException):
            async with httpx.AsyncClient(timeout=0.3) as client:
                await client.post(slow.url + GENERATE, json={"token_ids": [5], "sampling_params": params})

    asyncio.run(body())
    deadline = time.monotonic() + 20
    while slow.service.scheduler.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert slow.service.scheduler.finished["abort"] == 1


@pytest.mark.parametrize(
    ("do", "settings", "seen"),
    [
        (Do.DROP, {}, "reset"),
        (Do.CUT, {}, "reset"),
        (Do.STATUS, {"status": 401, "text": "no"}, 401),
        (Do.HTML, {"status": 200}, "<!doctype html>"),
        (Do.HALF_JSON, {}, "half"),
        (Do.CHOICES, {"number": 3}, 3),
        (Do.CHOICES, {"number": 0}, 0),
    ],
)
def test_a_fault_happens_to_one_request(server: Server, do: Do, settings: dict[str, Any], seen: object):
    server.fault(do, **settings)
    assert observed(server.url) == seen
    assert observed(server.url) == 1


def observed(url: str) -> object:
    """How a completion ended."""
    try:
        answer = httpx.post(url + GENERATE, json={"token_ids": [5], "sampling_params": {"max_tokens": 2}})
    except httpx.TransportError:
        return "reset"
    if answer.status_code != 200:
        return answer.status_code
    if answer.text.startswith("<"):
        return answer.text[:15]
    try:
        return len(answer.json()["choices"])
    except ValueError:
        return "half"


def test_a_closed_port_refuses_and_opens_again(server: Server):
    server.close_port()
    assert observed(server.url) == "reset"
    server.open_port()
    assert observed(server.url) == 1


@pytest.mark.slow
def test_a_process_of_its_own_ends_when_it_is_told_to(tiny_model: Path):
    line = [sys.executable, "-m", "tests.vllm_like", "serve", str(tiny_model), "--port", "0", "--enable-scale-out"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        try:
            assert observed(url) == 1
            assert httpx.get(url + "/weight_info").status_code == 404  # no VLLM_SERVER_DEV_MODE
        finally:
            process.terminate()
        assert process.wait(20) == 0
