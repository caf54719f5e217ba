"""Rewards of yours: `package.module:function`, called with the documented keywords (A-198 to A-203).

`prompts` and `completions` are lists of message lists, `completion_ids` lists of token ids, and every other column of
the dataset is a list under its own name; each list has one entry per completion. `trainer_state`, `log_extra` and
`log_metric` are those of the call (G-182). A function without `**kwargs` is passed only what it names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from agrpo.errors import RewardError
from agrpo.loading import module_named
from agrpo.records.group import RolloutGroup
from agrpo.registry import nearest
from agrpo.rewards.calling import Call

DOCUMENTED = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keywords:
    """What a function can be called with."""

    path: str
    takes_all: bool
    """Whether it has `**kwargs`."""
    named: frozenset[str]
    required: frozenset[str]
    """Those without a default."""

    @property
    def columns(self) -> list[str]:
        """Columns of the dataset that the function cannot be called without, sorted."""
        return sorted(self.required - {*DOCUMENTED})

    def of(self, group: RolloutGroup, call: Call) -> dict[str, Any]:
        """The keywords for one call. Raises `RewardError` naming the column that does not fit."""
        columns = group.reward_kwargs
        clashing = [name for name in DOCUMENTED if name in columns]
        if clashing:
            raise RewardError(f'reward "{self.path}": the dataset\'s column "{clashing[0]}" hides a keyword; rename it')
        offered = {
            "prompts": group.prompts,
            "completions": group.completions,
            "completion_ids": group.completions_ids,
            "trainer_state": call.trainer_state,
            "log_extra": call.log_extra,
            "log_metric": call.log_metric,
            **columns,
        }
        missing = sorted(self.required - offered.keys())
        if missing:
            raise RewardError(
                f'reward "{self.path}" needs "{missing[0]}", which is neither a documented keyword nor a column of the '
                f"dataset; there are: {', '.join(offered)}"
            )
        return offered if self.takes_all else {name: offered[name] for name in offered if name in self.named}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReward:
    """A plain function as a reward."""

    function: Callable[..., Sequence[float | None]]
    keywords: Keywords
    whole_group: bool

    @property
    def needed_facts(self) -> list[str]:
        """As for `Needing`."""
        return self.keywords.columns

    def __call__(self, group: RolloutGroup) -> Sequence[float | None]:
        """What the function returns for this group, its notes left aside."""
        return self.judge_and_note(group, Call(len(group.rollouts)))

    def judge_and_note(self, group: RolloutGroup, call: Call) -> Sequence[float | None]:
        """As for `Noting`."""
        return self.function(**self.keywords.of(group, call))


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncFunctionReward:
    """An `async def` function as a reward."""

    function: Callable[..., Awaitable[Sequence[float | None]]]
    keywords: Keywords
    whole_group: bool

    @property
    def needed_facts(self) -> list[str]:
        """As for `Needing`."""
        return self.keywords.columns

    async def __call__(self, group: RolloutGroup) -> Sequence[float | None]:
        """What the function returns for this group, its notes left aside."""
        return await self.judge_and_note(group, Call(len(group.rollouts)))

    async def judge_and_note(self, group: RolloutGroup, call: Call) -> Sequence[float | None]:
        """As for `Noting`."""
        return await self.function(**self.keywords.of(group, call))


def reward_function(path: str) -> FunctionReward | AsyncFunctionReward:
    """The function at `package.module:attribute` as a reward. Raises `RewardError` that says what is there instead.

    It needs the whole group if it carries a true attribute `whole_group`.
    """
    function = _function_at(path)
    bare = function.func if isinstance(function, functools.partial) else function
    whole_group = bool(getattr(function, "whole_group", getattr(bare, "whole_group", False)))
    kind = AsyncFunctionReward if is_async(function) else FunctionReward
    return kind(function=function, keywords=_keywords_of(function, path), whole_group=whole_group)


def is_async(target: object) -> bool:
    """Whether calling it gives a coroutine: an `async def`, a partial of one, or an object whose call is one."""
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)


def _function_at(path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    if "<" in attribute:
        raise RewardError(
            f'reward "{path}" is a lambda or a function inside a function, which another process cannot import; '
            "define it with def at the top of a module"
        )
    found: Any = module_named(module_name, path, RewardError, "reward ")
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise RewardError(f'reward "{path}": {module_name} has no "{attribute}"; {_nearest_in(found, name)}')
        found = getattr(found, name)
    problem = _unfit(found)
    if problem:
        raise RewardError(f'reward "{path}" {problem}')
    return found


def _unfit(found: object) -> str | None:
    if inspect.isclass(found):
        return "is a class; make an instance at the top of its module and name that, or name a function"
    if not callable(found):
        return f"is a {type(found).__name__}, which cannot be called; name a function"
    if getattr(found, "__name__", "") == "<lambda>":
        return "is a lambda; define it with def, so that records and tracebacks can name it"
    return None


def _nearest_in(owner: object, name: str) -> str:
    known = [own for own in dir(owner) if not own.startswith("_") and callable(getattr(owner, own, None))]
    return nearest(name, known) if known else "nothing there can be called"


def _keywords_of(function: Callable[..., Any], path: str) -> Keywords:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # written in C, without a signature
        return Keywords(path=path, takes_all=True, named=frozenset(), required=frozenset())
    needed = [each for each in parameters if each.default is Parameter.empty]
    unnamed = [each.name for each in needed if each.kind is Parameter.POSITIONAL_ONLY]
    if unnamed:
        raise RewardError(f'reward "{path}" takes "{unnamed[0]}" by position only; rewards are called with keywords')
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return Keywords(
        path=path,
        takes_all=any(each.kind is Parameter.VAR_KEYWORD for each in parameters),
        named=frozenset(each.name for each in parameters if each.kind in by_name),
        required=frozenset(each.name for each in needed if each.kind in by_name),
    )
