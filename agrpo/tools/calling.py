"""Calling tools: one call, with a deadline, to the text that the model reads."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from agrpo.config import ToolsSection
from agrpo.errors import ToolError
from agrpo.records.rollout import CallFailure, ToolCall
from agrpo.registry import nearest
from agrpo.tools import Tool
from agrpo.tools.caller import Caller, Outcome, words_of
from agrpo.tools.formats import RequestedCall

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
        failure, text = await self._result(call)
        ran = failure in (None, CallFailure.RAISED, CallFailure.TIMEOUT)
        told = self._cut(text if failure is None else f"Error: {text}")
        record = ToolCall(
            turn_index=turn_index,
            name=call.name[:LONGEST_NAME],
            duration_seconds=time.monotonic() - began if ran else 0.0,
            failure=failure,
            reason=None if failure is None else told,
        )
        return Answer(text=told, record=record)

    async def _result(self, call: RequestedCall) -> tuple[CallFailure | None, str]:
        """Why there is none, and the text."""
        if call.problem is not None:
            return CallFailure.MALFORMED, call.problem
        tool = self._tools.get(call.name)
        if tool is None:
            return CallFailure.UNKNOWN_NAME, f'there is no tool "{call.name}"; {nearest(call.name, list(self._tools))}'
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
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair is no text
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
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            found[name] = tool.parameters[name].validate_python(value)
        except pydantic.ValidationError as error:
            raise ValueError(f'argument "{name}": {error.errors()[0]["msg"]}') from None
    return found


def _as_text(value: Any) -> Outcome:
    """Text as it is, anything else as JSON."""
    if inspect.isawaitable(value):
        return Outcome(error=TypeError("it returned something to wait for; define it with async def"))
    try:
        return Outcome(value=value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    except Exception as error:
        return Outcome(error=error)
