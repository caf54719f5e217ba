"""What the engine vllm makes of JSON that no vLLM writes, and of completions that are not whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.engines import Engine
from agrpo.errors import EngineError, EngineLost
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import Sampling
from tests.vllm_like import Do, Options, Server
from tests.vllm_like.driving import drive, requests_of

SEED = 3
GENERATE = "/inference/v1/generate"
Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_faults(server: Server) -> None:
    server.faults.clear()


def of_choice(**changed: Change) -> Change:
    """The answer with these fields of its choice changed."""

    def change(document: Any) -> Any:
        (choice,) = document["choices"]
        return document | {"choices": [choice | {name: new(choice[name]) for name, new in changed.items()}]}

    return change


def of_places(**changed: Change) -> Change:
    """The answer with these fields of what is told of each token changed."""
    return of_choice(
        logprobs=lambda told: {
            "content": [place | {name: new(place[name]) for name, new in changed.items()} for place in told["content"]]
        }
    )


def cut(finish_reason: str) -> Change:
    """The first three tokens of the answer."""
    return of_choice(
        token_ids=lambda ids: ids[:3],
        logprobs=lambda told: {"content": told["content"][:3]},
        weight_versions=lambda spans: [spans[0] | {"end": 3}],
        finish_reason=lambda _: finish_reason,
    )


def without(name: str) -> Change:
    return lambda thing: {other: value for other, value in thing.items() if other != name}


NO_COMPLETION = "the server's answer is no completion: "
NOT_WHOLE = "asked for 8 tokens or an end before, the server returned 3 and no end (finish_reason "
ODD: dict[str, tuple[Change, str]] = {
    "a log-prob is a word": (of_places(logprob=lambda _: "x"), f"{NO_COMPLETION}TypeError"),
    "a log-prob is nothing": (of_places(logprob=lambda _: None), "the server gave token "),
    "tokens without their ids": (
        of_choice(logprobs=lambda told: {"content": [without("token_id")(place) for place in told["content"]]}),
        f"{NO_COMPLETION}KeyError('token_id')",
    ),
    "nothing is told of a token": (
        of_choice(logprobs=lambda told: {"content": [None, *told["content"][1:]]}),
        f"{NO_COMPLETION}AttributeError",
    ),
    "log-probs as a list": (of_choice(logprobs=lambda _: [1, 2]), f"{NO_COMPLETION}AttributeError"),
    "the most likely are a number": (of_places(top_logprobs=lambda _: 3), f"{NO_COMPLETION}TypeError"),
    "a token below 0": (of_choice(token_ids=lambda ids: [-1, *ids[1:]]), "the server returned no tokens: token_ids"),
    "a token that the model has not": (
        of_choice(
            token_ids=lambda ids: [*ids[:-1], 10**6],
            logprobs=lambda told: {"content": [*told["content"][:-1], told["content"][-1] | {"token_id": 10**6}]},
        ),
        "the server returned token 1000000, the model that is trained has ",
    ),
    "a likely token that the model has not": (
        of_places(top_logprobs=lambda tops: [*tops[:2], tops[2] | {"token_id": 10**6}]),
        "the server returned token 1000000, the model that is trained has ",
    ),
    "a span without a version": (
        of_choice(weight_versions=lambda spans: [without("version")(spans[0])]),
        f"{NO_COMPLETION}KeyError('version')",
    ),
    "spans are a word": (of_choice(weight_versions=lambda _: "x"), f"{NO_COMPLETION}TypeError"),
    "the end of a span is a word": (
        of_choice(weight_versions=lambda spans: [spans[0] | {"end": "8"}]),
        f"{NO_COMPLETION}TypeError",
    ),
    "spans begin late": (
        of_choice(weight_versions=lambda spans: [spans[0] | {"start": 10, "end": 18}]),
        "the server's weight versions do not follow each other: ",
    ),
    "an error after three tokens": (cut("error"), f"{NOT_WHOLE}error)"),
    "three tokens as if they were eight": (cut("length"), f"{NOT_WHOLE}length)"),
    "three tokens and an end that is none": (cut("stop"), f"{NOT_WHOLE}stop)"),
    "more tokens than were asked for": (
        of_choice(token_ids=lambda ids: [*ids, 7]),
        "asked for 8 tokens or an end before, the server returned 9 and no end",
    ),
    "only the sampled token": (
        of_places(top_logprobs=lambda _: []),
        "asked for the 3 most likely tokens at each place, the server returned 1",
    ),
    "two of the three most likely": (
        of_places(top_logprobs=lambda tops: tops[:2]),
        "asked for the 3 most likely tokens at each place, the server returned 2",
    ),
}


async def one(engine: Engine) -> TurnRecord:
    (turn,) = await engine.complete(requests_of([SEED], num_sampler_logprobs=3))
    return turn


def test_a_completion_of_another_shape_or_not_whole_is_a_wrong_answer(server: Server):
    async def body(engine: Engine) -> dict[str, str]:
        told: dict[str, str] = {}
        for name, (change, _) in ODD.items():
            server.fault(Do.CHANGE, seed=SEED, times=2, change=change)
            with pytest.raises(EngineError) as raised:
                await one(engine)
            assert type(raised.value) is EngineError
            told[name] = str(raised.value)
            server.faults.clear()
        return told

    told = drive([server], body)
    assert {name: text for name, text in told.items() if not text.startswith(ODD[name][1])} == {}


def test_after_one_answer_of_another_shape_comes_the_right_one(server: Server):
    async def body(engine: Engine) -> list[TurnRecord]:
        turns = [await one(engine)]
        for change, _ in ODD.values():
            server.fault(Do.CHANGE, seed=SEED, change=change)
            turns.append(await one(engine))
            server.faults.clear()
        return turns

    right, *again = drive([server], body)
    assert again == [right] * len(ODD)


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    "change",
    [
        of_choice(logprobs=lambda _: [1, 2]),
        of_places(logprob=lambda _: "x"),
        of_places(top_logprobs=lambda tops: tops[:2]),
        lambda _: {"choices": [None]},
    ],
)
def test_a_probe_of_another_shape_is_asked_again(server: Server, change: Change):
    async def body(engine: Engine) -> list[list[float]]:
        right = await engine.next_token_logprobs([7, 8], [5, 9])
        server.fault(Do.CHANGE, GENERATE, change=change)
        return right + await engine.next_token_logprobs([7, 8], [5, 9])

    right, again = drive([server], body, load_seconds=20.0)
    assert again == right


NO_SERVER: list[tuple[str, Any]] = [
    ("/version", None),
    ("/v1/models", {"data": ["x"]}),
    ("/v1/models", {"data": []}),
    ("/v1/models", {"data": [{"id": "x", "max_model_len": "many"}]}),
    ("/server_info", []),
    ("/server_info", {"vllm_config": None, "vllm_env": None}),
    ("/server_info", {"vllm_config": {"model_config": None}}),
    ("/tokenize", [1]),
    ("/is_paused", {"paused": False}),
    ("/is_paused", None),
]


@pytest.mark.parametrize(("path", "answer"), NO_SERVER)
def test_a_server_that_tells_of_itself_in_another_shape_is_no_vllm(server: Server, path: str, answer: Any):
    server.fault(Do.CHANGE, path, times=None, change=lambda _: answer)
    with pytest.raises(EngineLost) as raised:
        drive([server], one)
    assert str(raised.value).startswith(f"{server.url} answers, and not as a vLLM server does (")
    assert str(raised.value).endswith("; mend engine.base_urls")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ids, sets: [[token for token in sets[0] if token != ids[0]], *sets[1:]], "from a set of 4 tokens"),
        (lambda ids, sets: [[], *sets[1:]], "from a set of 0 tokens"),
        (lambda ids, sets: [[*sets[0], -1], *sets[1:]], "from a set of 6 tokens"),
        (lambda ids, sets: [[*sets[0], 10**6], *sets[1:]], "from a set of 6 tokens"),
    ],
    ids=["the sampled token is missing", "an empty set", "an id below 0", "an id that the model has not"],
)
def test_candidates_that_the_sampled_token_cannot_be_of_are_a_wrong_answer(
    change: Callable[[list[int], list[list[int]]], list[list[int]]], said: str, tiny_model: Path
):
    def changed(document: Any) -> Any:
        (choice,) = document["choices"]
        return {
            **document,
            "choices": [choice | {"sampling_mask": change(choice["token_ids"], choice["sampling_mask"])}],
        }

    async def body(engine: Engine) -> None:
        server.fault(Do.CHANGE, seed=SEED, times=2, change=changed)
        with pytest.raises(EngineError, match=said):
            await engine.complete(requests_of([SEED], top_k=5))

    with Server(tiny_model, Options(return_sampling_mask=True)) as server:
        drive([server], body, sampling=Sampling(max_completion_length=8, top_k=5))
