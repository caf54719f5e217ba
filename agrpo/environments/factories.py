"""An environment from its factory: found by its path or as an entry point, and looked over before anything runs in it."""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from inspect import Parameter
from types import MethodType
from typing import Any, cast

import pydantic

from agrpo.environments import Kind
from agrpo.errors import AgrpoError, EnvironmentFault, UnfitEnvironment, words_of
from agrpo.loading import module_named
from agrpo.registry import Registry, knobs_of, nearest, problems_of
from agrpo.tools import Tool
from agrpo.tools.functions import tool_of

GROUP = "agrpo.environments"
"""Of the entry points with which packages offer environments."""
ADAPTERS: Registry[Any] = Registry("agrpo.environments.adapters")
OWN = ("reset", "get_reward")
"""Methods that agrpo calls itself: no tools."""
NOT_HANDED_ON = frozenset({"prompt", "environment"})
"""Columns of a row that no `reset` is given."""


def kind_at(
    path: str,
    make: Callable[[Callable[[], Any]], Any] = lambda factory: factory(),
    *,
    settings: Mapping[str, Any] | None = None,
) -> Kind:
    """The environment that the factory at `path` makes. One that is a function without a result's type is called, by `make`.

    Raises `EnvironmentFault`, `UnfitEnvironment` where a class lacks what an environment has, or `ToolError` for a public
    method that cannot be a tool.
    """
    factory = factory_at(path, settings or {})
    cls = _class_of(factory, path, make)
    reset = getattr(cls, "reset", None)
    if not callable(reset):
        raise UnfitEnvironment(
            f'"{path}": {cls.__name__} has no method "reset", which begins every rollout; write '
            "`def reset(self, **columns) -> str | None`"
        )
    names, needs = _keywords_of(_bound(cls, "reset"), path, cls)
    get_reward = getattr(cls, "get_reward", None)
    if get_reward is not None:
        _refuse_arguments(cls, path)
    return Kind(
        path=path,
        factory=factory,
        class_name=cls.__name__,
        cls=cls,
        tools=_tools_of(cls),
        reset_is_async=inspect.iscoroutinefunction(reset),
        reset_names=names,
        reset_needs=needs,
        reward_is_async=None if get_reward is None else inspect.iscoroutinefunction(get_reward),
    )


def factory_at(path: str, settings: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes instances, given these settings by name. Raises `EnvironmentFault` that says what is there instead."""
    found = _imported(path) if ":" in path else _plugged_in(path)
    if not callable(found):
        raise EnvironmentFault(
            f'"{path}" is a {type(found).__name__}; expected a class, or a function that makes an environment'
        )
    if inspect.iscoroutinefunction(found):
        raise EnvironmentFault(f'"{path}" is written with async def; a factory makes its environment when it is called')
    if hasattr(found, "__agrpo_part__"):
        return _built(cast("type[Any]", found), path, settings)
    taken = [each for each in _parameters(found, path) if each.kind not in _REST]
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in _parameters(found, path))
    unknown = [] if takes_all else sorted(settings.keys() - {each.name for each in taken})
    if unknown:
        told = nearest(unknown[0], [each.name for each in taken]) if taken else "it takes none"
        raise EnvironmentFault(f'"{path}" has no setting "{unknown[0]}"; {told}')
    needed = [each for each in taken if each.default is Parameter.empty and each.name not in settings]
    if needed:
        raise EnvironmentFault(
            f'"{path}" needs "{needed[0].name}"; give it in the settings of the factory, or give the argument a default'
        )
    return _WithSettings(found, settings) if settings else found


def bound_tools(kind: Kind, instance: object) -> dict[str, Tool]:
    """The environment's tools, each of this instance."""
    return {name: replace(tool, function=getattr(instance, name)) for name, tool in kind.tools.items()}


def same_twice(kind: Kind) -> str:
    """What to say of a factory that gives two rollouts one instance."""
    return (
        f'"{kind.path}" gave the same {kind.class_name} twice; every rollout needs an instance of its own: name the class, or a '
        "function that makes a new one at each call"
    )


def _built(cls: type[Any], path: str, settings: Mapping[str, Any]) -> Callable[[], Any]:
    """A part whose fields are the settings, and whose call makes an instance."""
    try:
        return cls(**settings)
    except pydantic.ValidationError as error:
        raise EnvironmentFault("; ".join(problems_of(error, knobs_of(cls), f'"{path}": settings.'))) from None


@dataclass(frozen=True, slots=True)
class _WithSettings:
    """A factory and what it is given; every instance gets a copy of its own."""

    found: Callable[..., Any]
    settings: Mapping[str, Any]

    def __call__(self) -> Any:
        return self.found(**copy.deepcopy(dict(self.settings)))


_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _parameters(function: Callable[..., Any], path: str) -> list[Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise EnvironmentFault(f'"{path}" does not say what it takes: {error}') from None


def _imported(path: str) -> Any:
    module_name, _, name = path.partition(":")
    module = module_named(module_name, path, EnvironmentFault)
    if not hasattr(module, name):
        known = [own for own, value in vars(module).items() if callable(value) and not own.startswith("_")]
        told = nearest(name, known) if known else "nothing there can be called"
        raise EnvironmentFault(f'"{path}": {module_name} has no "{name}"; {told}')
    return getattr(module, name)


def _plugged_in(name: str) -> Any:
    if name in ADAPTERS.names():
        return ADAPTERS[name]
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in known:
        told = nearest(name, [*ADAPTERS.names(), *known])
        raise EnvironmentFault(
            f'"{name}" is no adapter of agrpo and no entry point in {GROUP}; {told}. Name yours as "package.module:Class"'
        )
    try:
        return known[name].load()
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(f'"{name}": loading {known[name].value} failed: {words_of(error)}') from error


def _class_of(factory: Callable[[], Any], path: str, make: Callable[[Callable[[], Any]], Any]) -> type[Any]:
    found = factory.found if isinstance(factory, _WithSettings) else factory
    if inspect.isclass(found):
        return found
    try:
        told = typing.get_type_hints(found).get("return")
    except Exception:  # types that cannot be resolved here say nothing
        told = None
    if inspect.isclass(told) and callable(getattr(told, "reset", None)):
        return told
    try:
        return type(make(factory))
    except AgrpoError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(f'"{path}" makes no environment: {words_of(error)}') from error


def _bound(cls: type[Any], name: str) -> Callable[..., Any]:
    """A method as an instance has it, so that its signature is without `self`; there need be no instance."""
    found = inspect.getattr_static(cls, name)
    return MethodType(found, object()) if inspect.isfunction(found) else getattr(cls, name)


def _keywords_of(reset: Callable[..., Any], path: str, cls: type[Any]) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Columns that `reset` takes (None: all), and those that it cannot do without."""
    parameters = _parameters(reset, path)
    unnamed = [each.name for each in parameters if each.kind is Parameter.POSITIONAL_ONLY]
    if unnamed:
        raise UnfitEnvironment(
            f'"{path}": {cls.__name__}.reset takes "{unnamed[0]}" by position only; it is called with keywords'
        )
    named = [each for each in parameters if each.kind not in _REST]
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    needed = frozenset(each.name for each in named if each.default is Parameter.empty)
    if kept := sorted(needed & NOT_HANDED_ON):
        raise UnfitEnvironment(
            f'"{path}": {cls.__name__}.reset takes "{kept[0]}", which it is never given: it gets the other columns of the row, and '
            "what it returns is put behind the prompt. Leave the argument out, or put what it is to know into a column of another name"
        )
    return None if takes_all else frozenset(each.name for each in named), needed


def _refuse_arguments(cls: type[Any], path: str) -> None:
    parameters = _parameters(_bound(cls, "get_reward"), path)
    needed = [each for each in parameters if each.default is Parameter.empty and each.kind not in _REST]
    if needed:
        raise UnfitEnvironment(
            f'"{path}": {cls.__name__}.get_reward takes "{needed[0].name}"; it is called without arguments: keep what it '
            "needs in the instance"
        )


def _tools_of(cls: type[Any]) -> Mapping[str, Tool]:
    """Its public methods but for those that agrpo calls, in the order in which they are written, inherited ones first."""
    found: dict[str, Tool] = {}
    for owner in reversed(cls.__mro__[:-1]):
        for name, value in vars(owner).items():
            if name.startswith("_") or name in OWN or not inspect.isroutine(value):
                continue
            if not inspect.isroutine(
                inspect.getattr_static(cls, name)
            ):  # a subclass has put something else in its place
                continue
            tool = tool_of(_bound(cls, name), f"{cls.__module__}:{cls.__name__}.{name}")
            found[tool.name] = tool
    return found
