"""Calling a tool: the text that the model reads, and what is recorded of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from agrpo.config import ToolsSection
from agrpo.errors import ToolError
from agrpo.records.rollout import CallFailure
from agrpo.tools import load_tools
from agrpo.tools.caller import Caller, Outcome
from agrpo.tools.calling import Answer, ToolRunner
from agrpo.tools.formats import RequestedCall

NAMES = (
    *("add", "wait_a_moment", "note", "divide", "sleep", "leave", "leave_the_loop", "say", "listed", "typed", "paint"),
    *("unspeakable", "numbers_of_no_json", "round_and_round"),
)
FUNCTIONS = [f"tests.tools.functions:{name}" for name in NAMES]


def runner(*, num_threads: int = 8, clock_decides: bool = True, **settings: Any) -> ToolRunner:
    section = ToolsSection(functions=FUNCTIONS, **settings)
    return ToolRunner(load_tools(section), section, Caller(num_threads=num_threads), clock_decides=clock_decides)


def call(name: str, **arguments: Any) -> RequestedCall:
    return RequestedCall(name=name, arguments=arguments)


def answers(calls: Sequence[RequestedCall], run: ToolRunner) -> list[Answer]:
    """Side by side, on one loop."""

    async def all_of_them() -> list[Answer]:
        return await asyncio.gather(*(run(one, 0) for one in calls))

    return asyncio.run(all_of_them())


def answer(one: RequestedCall, **settings: Any) -> Answer:
    return answers([one], runner(**settings))[0]


def test_results_are_text_and_anything_else_is_json():
    calls = [call("add", a=1, b=2), call("say", text="é\n"), call("listed"), call("wait_a_moment")]
    found = answers(calls, runner())
    assert [one.text for one in found] == ["3", "é\n", '[{"é": 1}]', "waited"]
    assert [one.record.failure for one in found] == [None] * 4
    assert found[3].record.duration_seconds >= 0.01


@pytest.mark.spec("A-242")
@pytest.mark.parametrize(
    ("one", "failure", "told"),
    [
        (call("ad", a=1, b=2), CallFailure.UNKNOWN_NAME, 'Error: there is no tool "ad"; did you mean "add"?'),
        (call("add", a=1), CallFailure.BAD_ARGUMENTS, 'Error: add: argument "b" is missing'),
        (call("add", a=1, b=2, c=3), CallFailure.BAD_ARGUMENTS, 'Error: add: unknown argument "c"; known: a, b'),
        (
            call("add", a=1, b="two"),
            CallFailure.BAD_ARGUMENTS,
            'Error: add: argument "b": Input should be a valid integer, unable to parse string as an integer',
        ),
        (
            call("paint", colour="blue"),
            CallFailure.BAD_ARGUMENTS,
            "Error: paint: argument \"colour\": KeyError: 'blue'",
        ),
        (call("paint", colour="leave"), CallFailure.BAD_ARGUMENTS, 'Error: paint: argument "colour": SystemExit: 3'),
        (call("divide", a=1, b=0), CallFailure.RAISED, "Error: ValueError: b is 0"),
        (call("round_and_round"), CallFailure.RAISED, "Error: ValueError: Circular reference detected"),
        (call("unspeakable"), CallFailure.RAISED, "Error: SystemExit: 3"),
        (call("leave"), CallFailure.RAISED, "Error: SystemExit: 3"),
        (call("leave_the_loop"), CallFailure.RAISED, "Error: SystemExit: 3"),
        (RequestedCall(problem="this is no call"), CallFailure.MALFORMED, "Error: this is no call"),
    ],
)
def test_a_call_that_fails_tells_the_model_why_and_ends_nothing(one: RequestedCall, failure: CallFailure, told: str):
    found = answer(one)
    assert (found.record.failure, found.text, found.record.reason) == (failure, told, told)


def test_numbers_that_json_does_not_have_are_told_as_text():
    assert answer(call("numbers_of_no_json")).text == '{"é": [1.5, "NaN", "Infinity", "-Infinity"]}'


def test_a_number_that_was_written_as_text_is_a_number():
    assert answer(call("add", a="1", b=2.0)).text == "3"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"text": "[1, 2]", "numbers": "[1, 2]", "table": '{"a": 1}'}, """'[1, 2]' [1, 2] {'a': 1}"""),
        ({"text": "null", "numbers": "null", "table": "null"}, "'null' None None"),
        ({"numbers": '["a"]'}, 'Error: typed: argument "numbers": Input should be a valid integer, unable to parse'),
        ({"numbers": "1, 2"}, 'Error: typed: argument "numbers": Input should be a valid list'),
        ({"numbers": "[" * 100_000}, 'Error: typed: argument "numbers": Input should be a valid list'),
    ],
)
def test_text_stays_text_where_text_is_wanted_and_is_json_where_it_is_not(arguments: dict[str, str], told: str):
    assert answer(call("typed", **arguments)).text.startswith(told)


def test_a_tool_that_takes_too_long_has_failed_in_time():
    began = time.monotonic()
    found = answers([call("sleep", seconds=1.5), call("wait_a_moment", seconds=60)], runner(timeout_seconds=0.1))
    assert time.monotonic() - began < 1
    assert [one.record.failure for one in found] == [CallFailure.TIMEOUT] * 2
    assert found[0].text == "Error: sleep gave no result within 0.1 s"
    assert 0.1 <= found[0].record.duration_seconds < 1


def test_where_no_clock_may_decide_a_tool_that_takes_too_long_ends_the_run():
    with pytest.raises(ToolError, match=r'tool "sleep" gave no result within 0.1 s \(tools.timeout_seconds\)'):
        answer(call("sleep", seconds=1), timeout_seconds=0.1, clock_decides=False)


@pytest.mark.spec("A-240")
def test_slow_tools_hold_nobody_up_and_run_on_as_many_threads_as_there_may_be():
    began = time.monotonic()
    found = answers([call("sleep", seconds=0.3)] * 4 + [call("wait_a_moment")], runner(num_threads=4))
    together = time.monotonic() - began
    assert together < 0.9
    assert all(one.record.duration_seconds >= 0.3 for one in found[:4])
    assert found[4].record.duration_seconds < 0.3
    began = time.monotonic()
    answers([call("sleep", seconds=0.1)] * 4, runner(num_threads=1))
    assert time.monotonic() - began >= 0.4


def test_a_call_that_gets_no_thread_has_failed_and_leaves_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch):
    begin, refused = threading.Thread.start, iter([True])

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("tool ") and next(refused, False):
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    first, second = answers([call("add", a=1, b=2)] * 2, runner(num_threads=1, timeout_seconds=5))
    assert (first.record.failure, first.text) == (CallFailure.RAISED, "Error: RuntimeError: can't start new thread")
    assert (second.record.failure, second.text) == (None, "3")


def test_a_long_result_is_cut_and_says_so():
    found = answer(call("say", text="ab", times=3), max_result_characters=4)
    assert found.text == "abab… (cut: 4 of 6 characters)"
    assert found.record.failure is None


def test_half_a_surrogate_pair_does_not_reach_the_records():
    assert answer(call("say", text="a\ud800b")).text == "a?b"


def test_when_every_thread_is_held_by_a_call_that_hangs_the_run_ends_and_names_it():
    holding, waiting = call("sleep", seconds=1.5), call("note", word="late")

    async def use_up(run: ToolRunner) -> list[Answer]:
        found = [await run(holding, 0), await run(holding, 0)]
        with pytest.raises(
            ToolError, match=r"all 2 threads .* have outlived their deadline .*: tool sleep \(2 times\)"
        ):
            await run(waiting, 0)
        await asyncio.sleep(1.5)  # they return after all, and free their places
        return [*found, await run(waiting, 0)]

    found = asyncio.run(use_up(runner(num_threads=2, timeout_seconds=0.1)))
    assert [one.record.failure for one in found] == [CallFailure.TIMEOUT, CallFailure.TIMEOUT, None]


def test_a_function_that_swallows_its_cancellation_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("agrpo.tools.caller.CANCEL_SECONDS", 0.1)

    async def work() -> list[Outcome | None]:
        caller, over = Caller(num_threads=1), asyncio.Event()

        async def goes_on() -> None:
            while not over.is_set():
                with suppress(asyncio.CancelledError):
                    await over.wait()

        found = [await caller.call("tool stays", goes_on, {}, is_async=True, seconds=0.05) for _ in range(2)]
        found.append(await caller.call("tool leaves", over.wait, {}, is_async=True, seconds=0.05))
        await asyncio.sleep(0.3)
        over.set()
        return found

    assert asyncio.run(work()) == [None] * 3
    (told,) = [message for message in caplog.messages if "after it was cancelled" in message]
    assert told.startswith("tool stays goes on 0.1 s after it was cancelled, and the generator's end waits for it.")
