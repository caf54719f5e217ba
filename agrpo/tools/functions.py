"""A tool from a function: found by its path, fit to be called by a model, described by its own types and docstring."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from pydantic import TypeAdapter

from agrpo.errors import ToolError
from agrpo.loading import module_named
from agrpo.registry import nearest
from agrpo.tools import Tool


def tool_at(path: str) -> Tool:
    """The function at `package.module:function` as a tool. Raises `ToolError` that says what is there instead."""
    return tool_of(_function_at(path), path)


def tool_of(function: Callable[..., Any], path: str) -> Tool:
    """A function, or a method that is bound, as a tool; `path` as messages call it. Raises `ToolError`.

    One that carries a `tool_schema` of its own is described by that: what it takes is known only when a program runs.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolError(f'"{path}" yields its result piece by piece; a tool returns it whole')
    parameters = inspect.signature(function).parameters.values()
    _refuse_untyped(function, path)
    hints = _hints_of(function, path)
    return Tool(
        name=function.__name__,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        schema=getattr(function, "tool_schema", None) or _schema_of(function, path),
        parameters={each.name: TypeAdapter(hints[each.name]) for each in parameters},
        required=frozenset(each.name for each in parameters if each.default is Parameter.empty),
    )


def _function_at(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    module = module_named(module_name, path, ToolError)
    found = getattr(module, name, None)
    if found is None:
        known = [own for own, value in vars(module).items() if inspect.isfunction(value) and not own.startswith("_")]
        told = nearest(name, known) if known else "it has no function at all"
        raise ToolError(f'"{path}": {module_name} has no "{name}"; {told}')
    if not inspect.isfunction(found):
        raise ToolError(
            f'"{path}" is a {type(found).__name__}; a tool is a function with def or async def at the top of a module'
        )
    if "<" in found.__qualname__ or "." in found.__qualname__:
        raise ToolError(f'"{path}" is {found.__qualname__}; define it with def at the top of a module')
    return found


def _refuse_untyped(function: Callable[..., Any], path: str) -> None:
    signature = inspect.signature(function)
    for each in signature.parameters.values():
        if each.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise ToolError(f'"{path}" takes "{each}"; a model calls with names alone, so name every argument')
        if each.annotation is Parameter.empty:
            raise ToolError(
                f'"{path}": argument "{each.name}" has no type; the model is told the types of all arguments'
            )
    if signature.return_annotation is inspect.Signature.empty:
        raise ToolError(f'"{path}" does not say what it returns; annotate it, such as `-> str`')


def _hints_of(function: Callable[..., Any], path: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception as error:
        raise ToolError(f'"{path}": its types cannot be resolved: {type(error).__name__}: {error}') from None


def _schema_of(function: Callable[..., Any], path: str) -> dict[str, Any]:
    """As transformers makes it of types and docstring."""
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        return get_json_schema(function)
    except Exception as error:
        raise ToolError(
            f'"{path}" cannot be described to a model: {error} A tool has a docstring in Google\'s style: a sentence, then '
            '"Args:" with a line for each argument'
        ) from None
