"""Instances of one environment: each lent to one rollout at a time, used again after a reset, replaced where it broke.

What hangs cannot be ended: such an instance is left alone with its thread and never lent again.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

from agrpo.environments import Kind
from agrpo.environments.factories import bound_tools, same_twice
from agrpo.environments.sharing import shared_by, shared_by_class
from agrpo.errors import EnvironmentFault, words_of
from agrpo.records.rollout import Stay
from agrpo.records.text import writable
from agrpo.tools import Tool
from agrpo.tools.caller import Caller

logger = logging.getLogger(__name__)

SHARED = (
    "instances of %s share %s: what one rollout changes there, another one sees. Make them anew in __init__ or in reset; what "
    "never changes is written in capitals"
)


class Broken(Exception):
    """An environment gave nothing. The message is the reason, fit for the record."""

    def __init__(self, reason: str, *, hangs: bool = False) -> None:
        super().__init__(reason)
        self.hangs = hangs
        """Whether its code may still run."""


class Pool:
    """The instances of one kind. All its methods run on one asyncio loop."""

    def __init__(self, kind: Kind, caller: Caller, *, seconds: float, clock_decides: bool = True) -> None:
        """`seconds`: that making an instance, `reset` and `get_reward` may each take (environments.timeout_seconds).

        `clock_decides`: whether what takes longer may fail; else it ends the run, which could not repeat it.
        """
        self.kind = kind
        self.num_made = 0
        self._caller = caller
        self._seconds = seconds
        self._clock_decides = clock_decides
        self._free: list[object] = []
        self._lent: dict[int, object] = {}
        """By id."""
        if names := shared_by_class(kind.cls):
            logger.warning(SHARED, kind.class_name, ", ".join(names))

    def visit(self, columns: Mapping[str, Any]) -> Visit:
        """A rollout's stay, still to begin. `columns`: of the prompt's row; the rollout gets a copy of its own."""
        names = self.kind.reset_names
        taken = {name: value for name, value in columns.items() if names is None or name in names}
        return Visit(self, copy.deepcopy(taken))

    async def take(self) -> object:
        """An instance that nobody uses. Raises `Broken`, or `EnvironmentFault` for one that another rollout has."""
        instance = self._free.pop() if self._free else await self._made()
        if id(instance) in self._lent or any(instance is other for other in self._free):
            raise EnvironmentFault(same_twice(self.kind))
        self._lent[id(instance)] = instance
        return instance

    def give_back(self, instance: object) -> None:
        """It may be lent again."""
        self.let_go(instance)
        self._free.append(instance)

    def let_go(self, instance: object) -> None:
        """It is never lent again."""
        del self._lent[id(instance)]

    async def ask(
        self, what: str, function: Callable[..., Any], arguments: Mapping[str, Any], *, is_async: bool
    ) -> Any:
        """What a call returns; `what`: its name, for messages.

        Raises `Broken` with the reason why it returned nothing, `EnvironmentFault` where no clock may decide.
        """
        outcome = await self._caller.call(what, function, arguments, is_async=is_async, seconds=self._seconds)
        if outcome is None:
            told = f"{what} did not return within {self._seconds:g} s (environments.timeout_seconds)"
            if self._clock_decides:
                raise Broken(told, hangs=True)
            raise EnvironmentFault(
                f"{told}. In a reproducible run the clock must not decide what becomes of a rollout: raise the limit, or make "
                "the environment faster"
            )
        if outcome.error is not None:
            raise Broken(f"{what} raised {words_of(outcome.error)}")
        return outcome.value

    async def _made(self) -> object:
        instance = await self.ask(f"making {self.kind.class_name}", self.kind.factory, {}, is_async=False)
        if not isinstance(instance, self.kind.cls):
            raise EnvironmentFault(
                f'"{self.kind.path}" made a {type(instance).__name__} where it was to make a {self.kind.class_name}; a factory '
                "makes one class: offer two as environments.factories"
            )
        self.num_made += 1
        other = next(iter([*self._lent.values(), *self._free]), instance)
        if self.num_made == 2 and other is not instance and (names := shared_by(instance, other)):
            logger.warning(SHARED, self.kind.class_name, ", ".join(names))
        return instance


class Visit:
    """One rollout's stay in an environment, from its reset to its reward."""

    def __init__(self, pool: Pool, columns: Mapping[str, Any]) -> None:
        self._pool = pool
        self._columns = columns
        self._instance: object | None = None
        """None: there is none yet, or none any more."""
        self._hangs = False
        """Whether something of it may still run, or it was not reset."""
        self._reset_seconds = 0.0
        self._reward_seconds: float | None = None
        self._reward: float | None = None
        self._reward_error: str | None = None

    async def begin(self) -> str | None:
        """Take an instance and reset it; what `reset` returned. Raises `Broken`, `EnvironmentFault` or `ToolError`."""
        began, kind = time.monotonic(), self._pool.kind
        self._hangs = True
        try:
            self._instance = await self._pool.take()
            told = await self._ask("reset", self._columns, is_async=kind.reset_is_async)
        except Broken:
            self.abandon()
            raise
        finally:
            self._reset_seconds = time.monotonic() - began
        if told is not None and not isinstance(told, str):
            self.abandon()
            raise Broken(f"{kind.class_name}.reset returned {type(told).__name__}; expected None or a string")
        self._hangs = False
        return None if told is None else writable(told)

    @property
    def tools(self) -> dict[str, Tool]:
        """The instance's methods."""
        assert self._instance is not None, "a visit has tools from its reset to its end"
        return bound_tools(self._pool.kind, self._instance)

    @contextmanager
    def in_call(self) -> Generator[None]:
        """While one of its tools is called; where this is left by an exception, the tool may still run."""
        hung, self._hangs = self._hangs, True
        yield
        self._hangs = hung

    def note_hanging(self) -> None:
        """One of its tools may still run: nobody else may have the instance."""
        self._hangs = True

    async def end(self, *, judged: bool) -> None:
        """Ask for the reward, where the rollout came to an end, and give the instance back.

        Raises `EnvironmentFault` or `ToolError`.
        """
        if self._instance is None:
            return
        if judged and self._pool.kind.reward_is_async is not None:
            await self._judge(is_async=self._pool.kind.reward_is_async)
        self.abandon()

    def abandon(self) -> None:
        """Give the instance back; nobody uses it again where it was not reset or something of it may still run.

        Nothing happens where the visit has ended.
        """
        if self._instance is None:
            return
        if self._hangs:
            self._pool.let_go(self._instance)
        else:
            self._pool.give_back(self._instance)
        self._instance = None

    def stay(self) -> Stay:
        """What became of it."""
        return Stay(
            environment=self._pool.kind.class_name,
            reset_seconds=self._reset_seconds,
            reward_seconds=self._reward_seconds,
            reward=self._reward,
            reward_error=self._reward_error,
        )

    async def _judge(self, *, is_async: bool) -> None:
        began, hung = time.monotonic(), self._hangs
        self._hangs = True
        try:
            returned = await self._ask("get_reward", {}, is_async=is_async)
            self._reward, self._reward_error = _number(returned)
            self._hangs = hung
        except Broken as broken:
            self._hangs = hung or broken.hangs
            self._reward_error = str(broken)
        finally:
            self._reward_seconds = time.monotonic() - began

    async def _ask(self, method: str, arguments: Mapping[str, Any], *, is_async: bool) -> Any:
        function: Callable[..., Any] = getattr(self._instance, method)
        return await self._pool.ask(f"{self._pool.kind.class_name}.{method}", function, arguments, is_async=is_async)


def _number(returned: Any) -> tuple[float | None, str | None]:
    """A reward, or why it is none."""
    item = getattr(returned, "item", None)
    try:
        plain = item() if callable(item) else returned  # a scalar of numpy or torch
    except (TypeError, ValueError, RuntimeError):
        plain = returned
    if not isinstance(plain, Real):
        return None, f"get_reward returned {type(returned).__name__}; expected a number"
    try:
        value = float(plain)
    except OverflowError:
        return None, f"get_reward returned {type(returned).__name__} too large for a float"
    return (value, None) if math.isfinite(value) else (None, f"get_reward returned {value}; expected a finite number")
