"""What the engine vllm makes of answers: whole ones, wrong ones, none at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.engines import Engine
from agrpo.engines.serving_vllm.completing import logprobs_of
from agrpo.errors import EngineError, EngineLost, PromptRefused
from agrpo.records.rollout import TurnRecord
from tests.vllm_like import Do, Options, Server
from tests.vllm_like.driving import PROMPT, drive, requests_of

SEED = 3


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_faults(server: Server) -> None:
    server.faults.clear()


async def one(engine: Engine) -> TurnRecord:
    (turn,) = await engine.complete(requests_of([SEED]))
    return turn


def seeds_asked(server: Server) -> list[int]:
    return [each.body["sampling_params"].get("seed") for each in server.asked("/inference/v1/generate")]


WRONG: list[tuple[Do, dict[str, Any], str]] = [
    (Do.CHOICES, {"number": 3}, "asked for one completion, the server returned 3 choices"),
    (Do.CHOICES, {"number": 0}, "asked for one completion, the server returned 0 choices"),
    (Do.CHOICES, {"number": 5}, "asked for one completion, the server returned 5 choices"),
    (Do.FEW_LOGPROBS, {}, "the server returned 8 tokens and 7 log-probs"),
    (Do.NO_LOGPROBS, {}, "the server returned 8 tokens and 0 log-probs"),
    (Do.WITHOUT, {"text": "token_ids"}, "the server returned no tokens: token_ids = None"),
    (Do.WITHOUT, {"text": "weight_versions"}, "the server returned 8 tokens and weight versions for 0 of them"),
    (Do.WITHOUT, {"text": "choices"}, "asked for one completion, the server returned no choices"),
    (
        Do.LABEL,
        {"text": "9@other"},
        'the server sampled under weights it calls "9@other", which nobody gave it; it was started again, or another run uses it',
    ),
]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(("do", "settings", "message"), WRONG)
def test_a_wrong_answer_is_asked_for_again_and_then_fails_with_its_reason(
    server: Server, do: Do, settings: dict[str, Any], message: str
):
    right = drive([server], one)
    server.fault(do, seed=SEED, **settings)
    before = len(seeds_asked(server))
    assert drive([server], one) == right
    assert seeds_asked(server)[before:].count(SEED) == 2
    server.fault(do, seed=SEED, times=None, **settings)
    with pytest.raises(EngineError) as raised:
        drive([server], one, outage_seconds=1.0)
    assert str(raised.value) == message


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    ("do", "settings"),
    [
        (Do.HALF_JSON, {}),
        (Do.CUT, {}),
        (Do.DROP, {}),
        (Do.DROP, {"late": True}),
        (Do.STATUS, {"status": 500, "text": "out of luck"}),
        (Do.STATUS, {"status": 503, "text": "busy"}),
        (Do.HTML, {"status": 502}),
    ],
)
def test_an_answer_that_went_missing_is_asked_for_again_with_the_same_seed(
    server: Server, do: Do, settings: dict[str, Any]
):
    right = drive([server], one)
    server.fault(do, seed=SEED, **settings)
    before = len(seeds_asked(server))
    assert drive([server], one) == right
    assert seeds_asked(server)[before:].count(SEED) == 2


@pytest.mark.usefixtures("short_pauses")
def test_one_answer_that_went_missing_breaks_off_no_other_request(tiny_model: Path):
    async def body(engine: Engine) -> list[TurnRecord]:
        return await engine.complete(
            requests_of(range(1, 9), stop_ids=(), max_completion_length=40, request_timeout_seconds=30.0)
        )

    with Server(tiny_model, Options(step_seconds=0.01)) as slow:
        slow.fault(Do.STATUS, seed=SEED, status=500, text="out of luck")
        turns = drive([slow], body)
        asked = seeds_asked(slow)
    assert [len(turn.output_ids) for turn in turns] == [40] * 8
    assert [asked.count(seed) for seed in range(1, 9)] == [1, 1, 2, 1, 1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("status", "text"), [(500, "out of luck"), (502, "bad gateway")])
def test_a_request_that_never_gets_an_answer_is_one_that_failed(server: Server, status: int, text: str):
    async def body(engine: Engine) -> TurnRecord:
        with pytest.raises(EngineError, match=text) as raised:
            await asyncio.wait_for(one(engine), 60)
        assert not isinstance(raised.value, EngineLost | PromptRefused)
        (other,) = await engine.complete(requests_of([4]))
        return other

    server.fault(Do.STATUS, seed=SEED, times=None, status=status, text=text)
    assert len(drive([server], body, outage_seconds=2.0).output_ids) == 8


@pytest.mark.spec("A-180")
def test_a_request_without_an_answer_is_asked_twice_and_then_given_up(server: Server):
    async def body(engine: Engine) -> TurnRecord:
        (turn,) = await engine.complete(requests_of([SEED], request_timeout_seconds=0.5))
        return turn

    server.fault(Do.HANG, seed=SEED)
    assert len(drive([server], body).output_ids) == 8
    server.fault(Do.HANG, seed=SEED, times=None)
    with pytest.raises(
        TimeoutError, match=rf"no answer from {server.url} within 0.5 s \(engine.request_timeout_seconds\)"
    ):
        drive([server], body)


def test_a_refused_prompt_is_a_fact_about_that_prompt(server: Server):
    async def body(engine: Engine) -> int:
        with pytest.raises(PromptRefused, match="answered 400: this prompt is not liked"):
            await one(engine)
        (other,) = await engine.complete(requests_of([4]))
        return len(other.output_ids)

    server.fault(Do.STATUS, seed=SEED, status=400, text="this prompt is not liked")
    before = len(seeds_asked(server))
    assert drive([server], body) == 8
    assert seeds_asked(server)[before:].count(SEED) == 1


def test_a_prompt_that_is_too_long_is_not_sent_at_all(tiny_model: Path):
    async def body(engine: Engine) -> None:
        await engine.complete(requests_of([SEED], prompt=[7] * 64))

    with Server(tiny_model, Options(max_model_len=64)) as small:
        with pytest.raises(PromptRefused) as raised:
            drive([small], body)
        assert SEED not in seeds_asked(small)
    assert str(raised.value) == (
        "a prompt of 64 tokens leaves no room for a completion: the servers' max_model_len is 64; shorten or drop the prompt, "
        "or start the servers with a larger --max-model-len"
    )


@pytest.mark.parametrize(
    ("do", "settings", "message"),
    [
        (
            Do.STATUS,
            {"status": 401, "text": "Unauthorized"},
            r"POST http://\S+/inference/v1/generate answered 401: Unauthorized; the server asks for a key: name the environment "
            "variable that holds it in engine.api_key_variable",
        ),
        (
            Do.HTML,
            {"status": 200},
            r"POST http://\S+/inference/v1/generate answered with a web page \(<!doctype html>.*\); what runs there is no vLLM "
            "server: mend engine.base_urls",
        ),
    ],
)
def test_what_asking_again_cannot_mend_ends_the_run(server: Server, do: Do, settings: dict[str, Any], message: str):
    server.fault(do, seed=SEED, times=None, **settings)
    with pytest.raises(EngineLost, match=f"^{message}$"):
        drive([server], one)


def test_a_request_that_nobody_waits_for_ends_at_the_server(tiny_model: Path):
    async def body(engine: Engine) -> None:
        asking = asyncio.create_task(engine.complete(requests_of([SEED], stop_ids=(), max_completion_length=900)))
        while not slow.service.scheduler.running:
            await asyncio.sleep(0.01)
        asking.cancel()
        while slow.service.scheduler.running:
            await asyncio.sleep(0.01)

    with Server(tiny_model, Options(step_seconds=0.005)) as slow:
        drive([slow], body)
        assert slow.service.scheduler.finished["abort"] == 1


def test_tokens_carry_the_version_that_sampled_them(tiny_model: Path):
    async def body(engine: Engine) -> TurnRecord:
        asking = asyncio.create_task(engine.complete(requests_of([SEED], stop_ids=(), max_completion_length=40)))
        while slow.service.scheduler.generated < 10:
            await asyncio.sleep(0.005)
        await engine.load(tiny_model, 7)
        return (await asking)[0]

    with Server(tiny_model, Options(step_seconds=0.01)) as slow:
        turn = drive([slow], body)
    assert sorted({*turn.output_versions}) == [0, 7]
    assert turn.output_versions == sorted(turn.output_versions)


def test_gaps_between_tries_grow(server: Server, caplog: pytest.LogCaptureFixture):
    server.fault(Do.STATUS, seed=SEED, times=3, status=500, text="out of luck")
    with caplog.at_level(logging.WARNING, logger="agrpo.engines"):
        drive([server], one)
    gaps = [record.getMessage().rpartition("again in ")[2] for record in caplog.records if "try" in record.getMessage()]
    assert gaps == ["0.25 s", "0.50 s", "1.00 s"]


def test_without_scale_out_the_other_endpoint_gives_the_same_turn(server: Server, tiny_model: Path):
    async def body(engine: Engine) -> TurnRecord:
        (turn,) = await engine.complete(requests_of([SEED], num_sampler_logprobs=4))
        return turn

    with Server(tiny_model, Options(enable_scale_out=False)) as plain:
        assert drive([plain], body) == drive([server], body)
        assert not plain.asked("/inference/v1/generate")[1:]


def test_the_most_likely_tokens_are_as_many_as_were_asked_for(server: Server):
    async def body(engine: Engine) -> TurnRecord:
        (turn,) = await engine.complete(requests_of([SEED], num_sampler_logprobs=4))
        return turn

    turn = drive([server], body)
    assert turn.output_sampler_logprobs is not None
    assert [len(top) for top in turn.output_sampler_logprobs] == [4] * 8


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("do", [Do.FEW_LOGPROBS, Do.HALF_JSON, Do.DROP])
def test_a_probe_whose_answer_went_wrong_is_asked_again(server: Server, do: Do):
    async def body(engine: Engine) -> list[list[float]]:
        right = await engine.next_token_logprobs([7, 8], [5, 9])
        server.fault(do, "/inference/v1/generate")
        return right + await engine.next_token_logprobs([7, 8], [5, 9])

    right, again = drive([server], body, load_seconds=20.0)
    assert again == right


def test_log_probs_of_the_next_token_are_the_models(server: Server, tiny_model: Path):
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        expected = (
            AutoModelForCausalLM.from_pretrained(tiny_model)(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
        )
    ranked = expected.sort(descending=True)
    ids = [*ranked.indices[:8].tolist(), int(ranked.indices[-1])]
    (found,) = drive([server], lambda engine: engine.next_token_logprobs(PROMPT, ids))
    assert found[:8] == pytest.approx(ranked.values[:8].tolist(), abs=1e-5)
    bounds = ranked.values[[18, 19]].tolist()
    assert min(abs(found[8] - bound) for bound in bounds) < 1e-5, "it is no more than the last of those that were told"
    assert ranked.values[-1] < found[8]


def test_a_probe_is_answered_alike_whichever_token_was_sampled():
    likely = [(9, -0.5), (4, -1.5), (6, -2.5)]

    def told(sampled: tuple[int, float], others: list[tuple[int, float]]) -> dict[str, Any]:
        first, *rest = [{"token_id": token, "logprob": value} for token, value in [sampled, *others]]
        return {"choices": [{"token_ids": [sampled[0]], "logprobs": {"content": [first | {"top_logprobs": rest}]}}]}

    answers = [told(likely[0], likely[1:]), told((5, -4.0), likely[:2]), told((5, -4.0), likely)]
    assert [logprobs_of(answer, [9, 5, 7], 3) for answer in answers] == [[-0.5, -1.5, -1.5]] * 3
