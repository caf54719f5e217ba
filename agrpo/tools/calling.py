"""Calling tools: one call, with a deadline, to the text that the model reads.

Functions written with `def` run on threads, at most so many at once; those written with `async def` run on the loop and
must not block it. A thread cannot be ended: one that outlives its deadline keeps its place until it returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pydantic

from agrpo.config import ToolsSection
from agrpo.errors import ToolError
from agrpo.records.rollout import CallFailure, ToolCall
from agrpo.registry import nearest
from agrpo.tools import Tool
from agrpo.tools.formats import RequestedCall, read_json

LONGEST_NAME = 200
"""Characters of a name that a model made up, as it is recorded."""


class _Outcome(NamedTuple):
    """What a function returned or raised."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a call."""

    text: str
    """For the model."""
    record: ToolCall


class ToolRunner:
    """The tools of a run, ready to be called on one asyncio loop."""

    def __init__(
        self, tools: Mapping[str, Tool], section: ToolsSection, *, num_threads: int, clock_decides: bool = True
    ) -> None:
        """`clock_decides`: whether a call that takes too long may fail; else it ends the run, which could not repeat it."""
        self._tools = tools
        self._timeout_seconds = section.timeout_seconds
        self._most_characters = section.max_result_characters
        self._clock_decides = clock_decides
        self._free = asyncio.Semaphore(num_threads)

    async def __call__(self, call: RequestedCall, turn_index: int) -> Answer:
        """Run it. Raises `ToolError` where it takes too long and no clock may decide."""
        began = time.monotonic()
        failure, text = self._fault(call) or await self._result(call)
        ran = failure in (None, CallFailure.RAISED, CallFailure.TIMEOUT)
        return self._answer(call, turn_index, failure, text, seconds=time.monotonic() - began if ran else 0.0)

    def refuse(self, call: RequestedCall, turn_index: int, why: str) -> Answer:
        """Do not run it. What else is wrong with it counts before `why`."""
        failure, text = self._fault(call) or (CallFailure.REFUSED, f"{call.name} was not run: {why}")
        return self._answer(call, turn_index, failure, text)

    def _answer(
        self, call: RequestedCall, turn_index: int, failure: CallFailure | None, text: str, seconds: float = 0.0
    ) -> Answer:
        told = self._cut(text if failure is None else f"Error: {text}")
        record = ToolCall(
            turn_index=turn_index,
            name=call.name[:LONGEST_NAME],
            duration_seconds=seconds,
            failure=failure,
            reason=None if failure is None else told,
        )
        return Answer(text=told, record=record)

    def _fault(self, call: RequestedCall) -> tuple[CallFailure, str] | None:
        """Of a call that no tool can take."""
        if call.problem is not None:
            return CallFailure.MALFORMED, call.problem
        if call.name not in self._tools:
            return CallFailure.UNKNOWN_NAME, f'there is no tool "{call.name}"; {nearest(call.name, list(self._tools))}'
        return None

    async def _result(self, call: RequestedCall) -> tuple[CallFailure | None, str]:
        """Why there is none, and the text."""
        tool = self._tools[call.name]
        try:
            arguments = checked(tool, call.arguments)
        except ValueError as error:
            return CallFailure.BAD_ARGUMENTS, f"{tool.name}: {error}"
        outcome = await self._outcome(tool, arguments)
        if outcome is None:
            if not self._clock_decides:
                raise ToolError(
                    f'tool "{tool.name}" gave no result within {self._timeout_seconds:g} s (tools.timeout_seconds). In a '
                    "reproducible run the clock must not decide what the model reads: raise the limit, or make the tool faster"
                )
            return CallFailure.TIMEOUT, f"{tool.name} gave no result within {self._timeout_seconds:g} s"
        if outcome.error is None:
            outcome = _as_text(outcome.value)
        if outcome.error is not None:
            return CallFailure.RAISED, f"{type(outcome.error).__name__}: {_words_of(outcome.error)}"
        return None, outcome.value

    async def _outcome(self, tool: Tool, arguments: dict[str, Any]) -> _Outcome | None:
        """None: the deadline has passed."""
        work = _awaited(tool, arguments) if tool.is_async else self._on_a_thread(tool, arguments)
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self._timeout_seconds)
            if not task.done():
                return None
            return _Outcome(error=RuntimeError("it was cancelled")) if task.cancelled() else task.result()
        finally:
            task.cancel()

    async def _on_a_thread(self, tool: Tool, arguments: dict[str, Any]) -> _Outcome:
        await self._free.acquire()
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        ended: asyncio.Future[_Outcome] = loop.create_future()

        def end(outcome: _Outcome) -> None:
            self._free.release()
            if not ended.done():
                ended.set_result(outcome)

        def work() -> None:
            try:
                outcome = _Outcome(value=context.run(tool.function, **arguments))
            except BaseException as error:
                outcome = _Outcome(error=error)
            with suppress(RuntimeError):  # the loop has ended meanwhile, and nobody waits
                loop.call_soon_threadsafe(end, outcome)

        # A daemon: it must not keep a process from ending.
        thread = threading.Thread(target=work, name=f"tool {tool.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            self._free.release()
            return _Outcome(error=error)
        return await ended

    def _cut(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair is no text
        most = self._most_characters
        return text if len(text) <= most else f"{text[:most]}… (cut: {most} of {len(text)} characters)"


def checked(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the types of the function have them: `"7"` is a number where one is wanted. Raises `ValueError`."""
    unknown = [name for name in arguments if name not in tool.parameters]
    if unknown:
        known = nearest(unknown[0], list(tool.parameters)) if tool.parameters else "it takes none"
        raise ValueError(f'unknown argument "{unknown[0]}"; {known}')
    missing = [name for name in tool.parameters if name in tool.required and name not in arguments]
    if missing:
        raise ValueError(f'argument "{missing[0]}" is missing')
    return {name: _checked_one(tool.parameters[name], name, value) for name, value in arguments.items()}


def _checked_one(taken: pydantic.TypeAdapter[Any], name: str, value: Any) -> Any:
    told = ValueError()
    for reading in _readings(value):
        try:
            return _validated(taken, reading)
        except ValueError as error:
            told = error
    raise ValueError(f'argument "{name}": {told}')


def _readings(value: Any) -> Iterator[Any]:
    """As it is; then, where it is text of JSON, as that says: a call in XML has lists, objects and null as text."""
    yield value
    if isinstance(value, str):
        with suppress(ValueError):
            yield read_json(value)


def _validated(taken: pydantic.TypeAdapter[Any], value: Any) -> Any:
    """A type may run code of the user's on what a model made up: whatever that raises, the value does not fit."""
    try:
        return taken.validate_python(value)
    except pydantic.ValidationError as error:
        told = error.errors()[0]["msg"]
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {_words_of(error)}"
    raise ValueError(told)


async def _awaited(tool: Tool, arguments: dict[str, Any]) -> _Outcome:
    try:
        return _Outcome(value=await tool.function(**arguments))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # a SystemExit would end the loop, and the run with it
        return _Outcome(error=error)


def _as_text(value: Any) -> _Outcome:
    """Text as it is, anything else as JSON."""
    try:
        if inspect.isawaitable(value):
            return _Outcome(error=TypeError("it returned something to wait for; define it with async def"))
        return _Outcome(value=value if isinstance(value, str) else _as_json(value))
    except (Exception, SystemExit) as error:
        return _Outcome(error=error)


def _as_json(value: Any) -> str:
    """What JSON does not have is text: `"NaN"`, `"Infinity"`, and any object's words."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        written = json.dumps(value, ensure_ascii=False, default=str)
        return json.dumps(json.loads(written, parse_constant=str), ensure_ascii=False)


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    except (Exception, SystemExit):
        return "it has no words"
