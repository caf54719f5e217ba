"""A judge behind a URL, against a real server on this machine: what it is sent, what it may answer, how long it is asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from agrpo.config import RewardSection
from agrpo.errors import RewardError
from agrpo.rewards import check_reward, load_reward, rewards
from agrpo.rewards.sandbox import RewardRunner
from tests.rewards.worlds import group_of, run

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
QUICK = {"backoff_seconds": 0.01, "request_seconds": 5.0}


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """The URL that the handler answers at."""
    app = web.Application()
    app.router.add_post("/judge", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/judge"
    finally:
        await runner.cleanup()


def judged(handler: Handler, *answers: str, knobs: dict[str, Any] | None = None, **facts: Any) -> Any:
    """What the judge makes of a group."""

    async def work() -> Any:
        async with served(handler) as url:
            judge: Any = rewards.build("http_judge", {"url": url, **QUICK, **(knobs or {})})
            return await judge(group_of(*answers, **facts))

    return run(work())


async def lengths(request: web.Request) -> web.Response:
    body = await request.json()
    return web.json_response({"rewards": [len(messages[-1]["content"]) for messages in body["completions"]]})


def answering(*bodies: Any, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    """The first answers in order, then the last for ever. Text goes as it is, anything else as JSON."""
    left = [*bodies]

    async def answer(_: web.Request) -> web.Response:
        body = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(body, web.Response):
            return body
        return web.Response(text=body if isinstance(body, str) else json.dumps(body), status=status, headers=headers)

    return answer


def test_a_service_judges_a_group_in_order() -> None:
    assert judged(lengths, "a", "bbb", "cc") == [1.0, 3.0, 2.0]


def test_a_service_is_sent_what_a_function_is_called_with() -> None:
    heard: list[Any] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append((await request.json(), request.headers["Content-Type"], request.headers.get("Authorization")))
        return web.json_response({"rewards": [None, 0.5]})

    assert judged(listen, "a", "é", knobs={"send_completion_ids": True}, solution="4") == [None, 0.5]
    ((body, kind, key),) = heard
    prompt = [{"role": "user", "content": "2 + 2 ="}]
    assert (kind, key) == ("application/json", None)
    assert body == {
        "prompts": [prompt, prompt],
        "completions": [[{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "é"}]],
        "columns": {"solution": ["4", "4"]},
        "completion_ids": [[0], [0]],
    }


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(request: web.Request) -> web.Response:
        return web.json_response({"rewards": [float(request.headers["Authorization"] == "Bearer sesame")]})

    with pytest.raises(RewardError, match=r"environment variable JUDGE_KEY \(api_key_variable\) is not set"):
        judged(check, "a", knobs={"api_key_variable": "JUDGE_KEY"})
    for key in ("sesame", "sesame\n", " sesame\r\n"):
        monkeypatch.setenv("JUDGE_KEY", key)
        assert judged(check, "a", knobs={"api_key_variable": "JUDGE_KEY"}) == [1.0]


@pytest.mark.parametrize("key", ["open\nsesame", "open sesame", "sésame", "sesame\x07"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_told(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(RewardError, match=r"JUDGE_KEY \(api_key_variable\) holds no key") as refused:
        judged(lengths, "a", knobs={"api_key_variable": "JUDGE_KEY"})
    assert key not in str(refused.value)


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.com", "user:word@127.0.0.1:9", "h:99999"])
def test_a_host_that_cannot_be_asked_is_a_problem_of_the_check(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sesame")
    settings = {"url": f"http://{host}/judge", "api_key_variable": "JUDGE_KEY", **QUICK}
    (problem,) = check_reward(RewardSection(name="http_judge", settings=settings))
    assert problem.startswith(f"http://{host}/judge is no URL that can be asked")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_failure_that_may_pass_is_asked_again(status: int) -> None:
    handler = answering(*[web.Response(status=status, text="busy") for _ in range(3)], {"rewards": [1]})
    assert judged(handler, "a") == [1.0]


def test_retries_are_counted_and_their_pauses_grow() -> None:
    times: list[float] = []

    async def refuse(_: web.Request) -> web.Response:
        times.append(time.monotonic())
        return web.Response(status=503, text="out of order")

    with pytest.raises(RewardError, match=r"answered 503: 'out of order' \(asked 4 times\)"):
        judged(refuse, "a", knobs={"backoff_seconds": 0.05})
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert len(pauses) == 3 and all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2), strict=True))


def test_a_service_that_asks_for_a_pause_gets_it() -> None:
    handler = answering(web.Response(status=429, headers={"Retry-After": "0.3"}), {"rewards": [1]})
    began = time.monotonic()
    assert judged(handler, "a") == [1.0]
    assert time.monotonic() - began >= 0.3


def test_no_retry_goes_past_the_deadline() -> None:
    handler = answering(web.Response(status=429, headers={"Retry-After": "20"}), {"rewards": [1]})
    began = time.monotonic()
    with pytest.raises(RewardError, match="asked 1 times"):
        judged(handler, "a", knobs={"deadline_seconds": 10.0})
    assert time.monotonic() - began < 10


def test_a_service_that_hangs_is_left_after_its_time() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    began = time.monotonic()
    with pytest.raises(RewardError, match=r"gave no answer within 0.1 s \(asked 2 times\)"):
        judged(hang, "a", knobs={"request_seconds": 0.1, "max_retries": 1})
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("it was fine", "what is no JSON .*'it was fine'"),
        ('{"rewards": [NaN, 1]}', "NaN is no number of JSON"),
        ([1, 2], r"answered \[1, 2\]; expected"),
        ({"scores": [1, 2]}, 'answered {"scores": .*expected {"rewards": .*} with 2 numbers or nulls'),
        ({"rewards": 1}, 'answered {"rewards": 1}'),
        ({"rewards": [1]}, "answered with 1 rewards; expected"),
        ({"rewards": [1, "2"]}, r'rewards\[1\] = "2"'),
        ({"rewards": [True, 1]}, r"rewards\[0\] = true"),
        ({"rewards": [1, [2]]}, r"rewards\[1\] = \[2\]"),
        ("[" * 10**5 + "]" * 10**5, r"what is no JSON .*'\[\["),
        ("x" * (2**24 + 1), "more than 16777216 bytes"),
    ],
)
def test_an_answer_of_another_shape_is_refused_at_once(body: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        judged(answering(body, {"rewards": [0, 0]}), "a", "b")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "answered 404: 'gone'; expected 200"),
        (401, "api_key_variable"),
        (302, "points to http://elsewhere/; give that URL"),
    ],
)
def test_a_status_that_does_not_pass_is_not_asked_again(status: int, message: str) -> None:
    handler = answering(
        web.Response(status=status, text="gone", headers={"Location": "http://elsewhere/"}), {"rewards": [1]}
    )
    with pytest.raises(RewardError, match=message):
        judged(handler, "a")


def test_a_column_that_json_cannot_carry_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"cannot be sent as JSON.*bytes"):
        judged(lengths, "a", image=b"\x00")
    with pytest.raises(RewardError, match="cannot be sent as JSON"):
        judged(lengths, "a", score=float("nan"))
    nested: list[Any] = []
    for _ in range(10**4):
        nested = [nested]
    with pytest.raises(RewardError, match="cannot be sent as JSON"):
        judged(lengths, "a", nested=nested)


def test_a_service_is_asked_about_an_empty_group_before_a_run() -> None:
    async def prepared(handler: Handler) -> None:
        async with served(handler) as url:
            await asyncio.to_thread(load_reward, RewardSection(name="http_judge", settings={"url": url, **QUICK}))

    run(prepared(lengths))
    with pytest.raises(RewardError, match=r"answered with 2 rewards; expected .* with 0 numbers"):
        run(prepared(answering({"rewards": [1, 2]})))


def test_a_url_that_nothing_answers_at_is_refused() -> None:
    settings = {"url": "http://127.0.0.1:9/judge", **QUICK}
    with pytest.raises(RewardError, match=r"127.0.0.1:9/judge cannot be reached: .*\(asked 4 times\)"):
        load_reward(RewardSection(name="http_judge", settings=settings))


@pytest.mark.parametrize("url", ["judge", "ftp://here/judge", "http://", "http:// here"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url = "):
        rewards.build("http_judge", {"url": url})


def test_a_group_without_a_judgement_has_its_reason_and_the_next_is_judged() -> None:
    handler = answering({"rewards": []}, {"rewards": []}, web.Response(status=400, text="no"), {"rewards": [1, None]})

    async def work() -> list[Any]:
        async with served(handler) as url:
            runner = RewardRunner(RewardSection(name="http_judge", settings={"url": url, **QUICK}))
            try:
                return [await runner.score(group_of("a", "b")) for _ in range(2)]
            finally:
                await runner.close()

    failed, fine = run(work())
    assert failed.values == [None, None] and all("answered 400: 'no'" in error for error in failed.errors)
    assert (fine.values, fine.errors) == ([1.0, None], [None, None])
