"""What the engine vllm finds wrong with a server before the first request, all at once, with the flag that mends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs, engines
from agrpo.errors import EngineError, EngineLost, PromptRefused
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import Sampling
from tests.vllm_like import Do, Options, Server
from tests.vllm_like.driving import QUICK, drive, requests_of

KEY = "AGRPO_TEST_VLLM_KEY"


async def one(engine: Engine) -> TurnRecord:
    (turn,) = await engine.complete(requests_of([3]))
    return turn


def refusal(model: Path, options: Options, learner: Path | None = None, **sampling: Any) -> str:
    """What a run with these settings is told of a server with those flags, without the server's address."""
    with Server(model, options) as server:
        with pytest.raises(EngineLost) as raised:
            drive([server], one, sampling=Sampling(max_completion_length=8, **sampling), model=learner)
        return str(raised.value).replace(server.url, "URL")


RAW = (
    "URL: gives log-probs as --logprobs-mode raw_logprobs, which are not those of the distribution it samples; start it with "
    "--logprobs-mode processed_logprobs"
)
FEW = (
    "URL: gives 5 log-probs per token; engine.num_sampler_logprobs = 8 and the check of new weights (8) need 9: start it with "
    "--max-logprobs 9"
)
SHORT = (
    "URL: holds 8 tokens of prompt and completion together, and engine.max_completion_length is 8; start it with a larger "
    "--max-model-len, or lower the second"
)
NO_MASK = (
    "URL: engine.top_k, top_p and min_p need the candidates of each token; start it with --return-sampling-mask (and "
    "VLLM_USE_V2_MODEL_RUNNER=1 where it refuses that)"
)
NO_SCALE_OUT = "URL: engine.top_k, top_p and min_p need the candidates of each token; start it with --enable-scale-out"


@pytest.mark.spec("A-064", "A-167", "A-168", "A-174", "A-181")
@pytest.mark.parametrize(
    ("options", "sampling", "message"),
    [
        (Options(logprobs_mode="raw_logprobs"), {}, RAW),
        (Options(max_logprobs=5), {"num_sampler_logprobs": 8}, FEW),
        (Options(max_model_len=8), {}, SHORT),
        (Options(), {"top_k": 5}, NO_MASK),
        (Options(enable_scale_out=False, return_sampling_mask=True), {"top_k": 5}, NO_SCALE_OUT),
    ],
)
def test_a_flag_that_is_missing_is_named(tiny_model: Path, options: Options, sampling: dict[str, Any], message: str):
    assert refusal(tiny_model, options, **sampling) == message


@pytest.mark.spec("A-046")
def test_a_server_of_another_dtype_is_warned_of(tiny_model: Path, caplog: pytest.LogCaptureFixture):
    with Server(tiny_model, Options(dtype="bfloat16")) as server:
        drive([server], one)
    assert f"{server.url} serves in bfloat16 and the learner trains in float32" in caplog.text


def test_all_that_is_missing_is_said_at_once(tiny_model: Path):
    options = Options(logprobs_mode="raw_logprobs", max_logprobs=5, max_model_len=8, served_model_name="x")
    told = refusal(tiny_model, options, num_sampler_logprobs=8, top_k=5)
    other = f'URL: serves x and not "{tiny_model}"; start it with --served-model-name {tiny_model}, or set engine.served_model'
    assert sorted(told.split("; URL")) == sorted(
        text.removeprefix("URL") if place else text for place, text in enumerate([other, RAW, FEW, NO_MASK, SHORT])
    )


def test_what_two_servers_lack_is_told_of_both(tiny_model: Path):
    with (
        Server(tiny_model, Options(logprobs_mode="raw_logprobs")) as raw,
        Server(tiny_model, Options(max_logprobs=5)) as few,
    ):
        with pytest.raises(EngineLost) as raised:
            drive([raw, few], one, sampling=Sampling(max_completion_length=8, num_sampler_logprobs=8))
    assert str(raised.value) == f"{RAW.replace('URL', raw.url)}; {FEW.replace('URL', few.url)}"


def test_completions_that_a_prompt_leaves_too_little_room_are_warned_of_once(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
):
    async def body(engine: Engine) -> list[int]:
        return [len(turn.output_ids) for turn in await engine.complete(requests_of([3, 4], stop_ids=()))]

    with Server(tiny_model, Options(max_model_len=10)) as server:
        assert drive([server], body) == [5, 5]
    assert [text for text in caplog.messages if "cut" in text] == [
        "a prompt of 5 tokens leaves 5 for its completion, and engine.max_completion_length is 8: completions like this one are "
        "cut; start the servers with --max-model-len 13 or more"
    ]


def test_of_servers_of_its_own_a_run_is_told_its_settings_and_no_flags(tiny_model: Path):
    async def main(server: Server, prompt: list[int]) -> None:
        needs = Needs(servers=lambda: [server.url], sampling=Sampling(max_completion_length=8))
        part = engines.build("vllm", {**QUICK, "serve": True, "max_model_len": server.options.max_model_len})
        engine = part(ModelSection(path=str(tiny_model)), needs)
        try:
            await engine.load(tiny_model, 0)
            await engine.complete(requests_of([3], prompt))
        finally:
            await engine.close()

    with Server(tiny_model, Options(max_model_len=8)) as short, Server(tiny_model, Options(max_model_len=12)) as long:
        with pytest.raises(
            EngineLost, match=r"; raise engine.max_model_len as far as the model allows, or lower the second$"
        ):
            asyncio.run(main(short, [7]))
        with pytest.raises(PromptRefused, match=r"shorten or drop the prompt, or raise engine.max_model_len$"):
            asyncio.run(main(long, [7] * 12))


def test_a_server_without_dev_mode_is_told_with_the_rest(tiny_model: Path):
    told = refusal(tiny_model, Options(dev_mode=False, served_model_name="x"))
    assert "start it with VLLM_SERVER_DEV_MODE=1" in told
    assert f"start it with --served-model-name {tiny_model}" in told


def test_a_server_with_other_tokens_is_not_used(tiny_model: Path, other_tokens: Path):
    told = refusal(other_tokens, Options(served_model_name=str(tiny_model)), learner=tiny_model)
    assert told.startswith("URL: its tokenizer makes other tokens of ")
    assert told.endswith(f"; start it with --tokenizer {tiny_model}")


@pytest.fixture
def other_tokens(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model with a tokenizer that swaps two digits."""
    import json
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    document = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    vocabulary["2"], vocabulary["4"] = vocabulary["4"], vocabulary["2"]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def test_a_server_that_asks_for_a_key_is_given_one(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEY, "open sesame")
    with Server(tiny_model, Options(api_key="open sesame")) as server:
        assert len(drive([server], one, api_key_variable=KEY).output_ids) == 8


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        (None, "the server asks for a key: name the environment variable that holds it in engine.api_key_variable"),
        (
            "wrong",
            "the server takes another key than it was sent: put the one it was started with into the environment variable that "
            "engine.api_key_variable names",
        ),
    ],
)
def test_a_key_that_is_missing_or_wrong_ends_the_run(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, advice: str
):
    monkeypatch.setenv(KEY, key or "")
    with Server(tiny_model, Options(api_key="open sesame")) as server:
        with pytest.raises(EngineLost) as raised:
            drive([server], one, **({} if key is None else {"api_key_variable": KEY}))
        assert str(raised.value) == f"GET {server.url}/v1/models answered 401: Unauthorized; {advice}"


@pytest.mark.parametrize(("path", "status"), [("/version", 404), ("/health", 502)])
def test_a_web_page_that_tells_of_an_error_is_not_repeated(tiny_model: Path, path: str, status: int):
    with Server(tiny_model) as server:
        server.fault(Do.HTML, path, times=None, status=status)
        with pytest.raises(EngineLost, match=rf"answered {status}: a web page\b") as raised:
            drive([server], one, start_seconds=0.3)
    assert "<" not in str(raised.value)


def test_a_web_page_on_the_port_is_no_server(tiny_model: Path):
    with Server(tiny_model) as server:
        for path in ("/version", "/weight_info"):
            server.fault(Do.HTML, path, times=None, status=200)
        with pytest.raises(EngineLost, match=r"answered with a web page \(<!doctype html>.*mend engine.base_urls"):
            drive([server], one)


@pytest.mark.spec("A-058", "A-178")
def test_a_port_where_nobody_answers_is_waited_for_and_then_named(tiny_model: Path, caplog: pytest.LogCaptureFixture):
    with Server(tiny_model) as server:
        server.end()
        with pytest.raises(EngineLost) as raised:
            drive([server], one, start_seconds=0.8)
        assert isinstance(raised.value, ConnectionError)
        assert str(raised.value).startswith(
            f"no vLLM server has been there for 1 s, and 0.8 s is the limit (engine.start_seconds): {server.url}: GET {server.url}/"
        )
        assert "Cannot connect" in str(raised.value)
        (told,) = [text for text in caplog.messages if "is not there" in text]
        assert told.startswith(f"server {server.url} is not there (GET {server.url}/health: ")


@pytest.mark.parametrize(
    ("do", "path"), [(Do.HALF_JSON, "/version"), (Do.STATUS, "/v1/models"), (Do.DROP, "/tokenize")]
)
def test_a_server_that_stumbles_while_it_comes_up_is_looked_at_again(tiny_model: Path, do: Do, path: str):
    with Server(tiny_model) as server:
        server.fault(do, path)
        assert len(drive([server], one).output_ids) == 8


def test_a_server_that_cannot_list_its_settings_is_tried_instead(tiny_model: Path):
    with Server(tiny_model) as server:
        server.fault(Do.STATUS, "/server_info", times=None, text="'NoneType' object has no attribute 'splitlines'")
        assert len(drive([server], one).output_ids) == 8
    with Server(tiny_model, Options(max_logprobs=5)) as server:
        server.fault(Do.STATUS, "/server_info", times=None, text="'NoneType' object has no attribute 'splitlines'")
        with pytest.raises(EngineError, match="Requested sample logprobs of 9, which is greater than max allowed: 5"):
            drive([server], one, sampling=Sampling(max_completion_length=8, num_sampler_logprobs=8))


def test_a_probe_of_eight_tokens_needs_nine_log_probs_whatever_the_run_keeps(tiny_model: Path):
    assert "start it with --max-logprobs 9" in refusal(tiny_model, Options(max_logprobs=5))


def test_a_server_that_returns_candidates_is_probed_like_any_other(tiny_model: Path):
    async def body(engine: Engine) -> tuple[TurnRecord, list[list[float]]]:
        (turn,) = await engine.complete(requests_of([3], top_k=5))
        return turn, await engine.next_token_logprobs([5, 6, 7], [8, 9])

    sampling = Sampling(max_completion_length=8, top_k=5)
    with Server(tiny_model, Options(return_sampling_mask=True)) as server:
        turn, (found,) = drive([server], body, sampling=sampling)
    with Server(tiny_model) as server:
        (plain,) = drive([server], lambda engine: engine.next_token_logprobs([5, 6, 7], [8, 9]))
    assert turn.output_sampling_mask is not None
    assert all(
        token in mask and len(mask) == 5 for token, mask in zip(turn.output_ids, turn.output_sampling_mask, strict=True)
    )
    assert found == pytest.approx(plain, abs=1e-6)
