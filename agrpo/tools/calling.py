"""Calling tools: one call, with a deadline, to the text that the model reads."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pydantic

from agrpo.config import ToolsSection
from agrpo.errors import ToolError, words_of
from agrpo.records.rollout import CallFailure, ToolCall
from agrpo.records.text import writable
from agrpo.registry import nearest
from agrpo.tools import Tool
from agrpo.tools.caller import Caller, Outcome
from agrpo.tools.formats import RequestedCall, read_json

LONGEST_NAME = 200
"""Characters of a name that a model made up, as it is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a call."""

    text: str
    """For the model."""
    record: ToolCall


class ToolRunner:
    """Tools, ready to be called on one asyncio loop."""

    def __init__(
        self, tools: Mapping[str, Tool], section: ToolsSection, caller: Caller, *, clock_decides: bool = True
    ) -> None:
        """`clock_decides`: whether a call that takes too long may fail; else it ends the run, which could not repeat it."""
        self._tools = tools
        self._section = section
        self._caller = caller
        self._clock_decides = clock_decides

    def beside(self, tools: Mapping[str, Tool]) -> ToolRunner:
        """The same with further tools."""
        both = {**self._tools, **tools}
        return ToolRunner(both, self._section, self._caller, clock_decides=self._clock_decides)

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
        limit = self._section.timeout_seconds
        outcome = await self._caller.call(
            f"tool {tool.name}", tool.function, arguments, is_async=tool.is_async, seconds=limit
        )
        if outcome is None:
            if not self._clock_decides:
                raise ToolError(
                    f'tool "{tool.name}" gave no result within {limit:g} s (tools.timeout_seconds). In a '
                    "reproducible run the clock must not decide what the model reads: raise the limit, or make the tool faster"
                )
            return CallFailure.TIMEOUT, f"{tool.name} gave no result within {limit:g} s"
        if outcome.error is None:
            outcome = _as_text(outcome.value)
        if outcome.error is not None:
            return CallFailure.RAISED, words_of(outcome.error)
        return None, outcome.value

    def _cut(self, text: str) -> str:
        text = writable(text)
        most = self._section.max_result_characters
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
        told = words_of(error)
    raise ValueError(told)


def _as_text(value: Any) -> Outcome:
    """Text as it is, anything else as JSON."""
    try:
        if inspect.isawaitable(value):
            return Outcome(error=TypeError("it returned something to wait for; define it with async def"))
        return Outcome(value=value if isinstance(value, str) else _as_json(value))
    except (Exception, SystemExit) as error:
        return Outcome(error=error)


def _as_json(value: Any) -> str:
    """What JSON does not have is text: `"NaN"`, `"Infinity"`, and any object's words."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        written = json.dumps(value, ensure_ascii=False, default=str)
        return json.dumps(json.loads(written, parse_constant=str), ensure_ascii=False)
