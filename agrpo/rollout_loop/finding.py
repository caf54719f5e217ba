"""The loop of a run, and its `rollout_func`: found by their paths, held to what they are called with, built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from agrpo.errors import HookError
from agrpo.loading import module_named
from agrpo.registry import nearest
from agrpo.rollout_loop import AsyncRolloutLoop

if TYPE_CHECKING:
    from agrpo.config import RolloutLoopSection, RunConfig

ASKING = ("generate_one", "generate_one_turn")
"""Hooks that make a rollout, which a `rollout_func` does by itself."""
ALL_BUT_ALIKE = 0.85
"""How like a hook's name another one is, at least, to be that hook misspelt."""
HOOKS = ("filter_prompt", "generate_one", "generate_one_turn", "compute_advantages", "setup", "close")


def build_loop(config: RunConfig, tokenizer: Any) -> AsyncRolloutLoop:
    """The run's loop. Raises `HookError`."""
    cls = loop_class(config.rollout_loop)
    try:
        return cls(config=config, model_name=config.model.path, processing_class=tokenizer)
    except Exception as error:
        raise HookError(
            f'rollout_loop.path "{config.rollout_loop.path}" cannot be built: {type(error).__name__}: {error}; mend its __init__'
        ) from error


def loop_class(section: RolloutLoopSection) -> type[AsyncRolloutLoop]:
    """The class that a run names, or agrpo's own. Raises `HookError` that says what is there instead."""
    if section.path is None:
        return AsyncRolloutLoop
    found = _found_at(section.path, "class", inspect.isclass)
    if not inspect.isclass(found) or not issubclass(found, AsyncRolloutLoop):
        told = f"the class {found.__name__}" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise HookError(f'"{section.path}" is {told}; expected a subclass of agrpo.AsyncRolloutLoop')
    if "." in found.__qualname__:
        raise HookError(f'"{section.path}" is {found.__qualname__}; define the class at the top of a module')
    problems = [problem for hook in HOOKS if overrides(found, hook) for problem in _hook_problems(found, hook)]
    problems += _misspelt(found)
    if not _takes(partial(inspect.signature(found).bind), config=None, model_name="", processing_class=None):
        problems.append(
            f"__init__{_signature(found.__init__)} has to take config, model_name and processing_class; take **kwargs and hand "
            "them on to super().__init__"
        )
    if problems:
        raise HookError(f'"{section.path}": {"; ".join(problems)}')
    return found


def check_rollout_loop(section: RolloutLoopSection) -> list[str]:
    """What keeps the loop and the function from being used here, a sentence each. It imports their modules."""
    problems: list[str] = []
    own: list[str] = []
    try:
        own = [hook for hook in ASKING if overrides(loop_class(section), hook)]
    except HookError as error:
        problems.append(f"rollout_loop.path: {error}")
    if section.rollout_func is None:
        return problems
    try:
        rollout_function(section.rollout_func)
    except HookError as error:
        problems.append(f"rollout_loop.rollout_func: {error}")
    if own:
        problems.append(
            f"rollout_loop.rollout_func: {section.rollout_func} makes the completions, and {own[0]} of {section.path} would "
            "never be called; leave one of them out"
        )
    return problems


def rollout_function(path: str) -> Callable[..., Any]:
    """The function at `package.module:function`, which takes prompts and a trainer. Raises `HookError`."""
    found = _found_at(path, "function", inspect.isfunction)
    if not inspect.isfunction(found) or "." in found.__qualname__ or "<" in found.__qualname__:
        told = found.__qualname__ if inspect.isfunction(found) else f"a {type(found).__name__}"
        raise HookError(f'"{path}" is {told}; expected a function, with def or async def at the top of a module')
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise HookError(f'"{path}" yields its completions piece by piece; return them whole, as one dict')
    if not _takes(inspect.signature(found).bind, None, None):
        raise HookError(
            f'"{path}": {found.__name__}{_signature(found)} is called as {found.__name__}(prompts, trainer); take the same '
            "arguments"
        )
    return found


def overrides(cls: type[AsyncRolloutLoop], hook: str) -> bool:
    """Whether the class has a hook of its own."""
    return inspect.getattr_static(cls, hook) is not inspect.getattr_static(AsyncRolloutLoop, hook)


def _found_at(path: str, kind: str, is_kind: Callable[[Any], bool]) -> Any:
    """What is at the path; `kind`: what should be, for the message where nothing is."""
    module_name, _, name = path.partition(":")
    module = module_named(module_name, path, HookError)
    if not hasattr(module, name):
        known = [own for own, value in vars(module).items() if is_kind(value) and not own.startswith("_")]
        told = nearest(name, known) if known else f"it has no {kind} at all"
        raise HookError(f'"{path}": {module_name} has no "{name}"; {told}')
    return getattr(module, name)


def _hook_problems(cls: type[AsyncRolloutLoop], hook: str) -> list[str]:
    own, base = inspect.getattr_static(cls, hook), getattr(AsyncRolloutLoop, hook)
    if not inspect.isfunction(own):
        return [f"{hook} is a {type(own).__name__}; expected a method, written with def or async def"]
    if inspect.iscoroutinefunction(own) != inspect.iscoroutinefunction(base):
        wanted = "async def" if inspect.iscoroutinefunction(base) else "def"
        return [f"{hook} has to be written with {wanted}"]
    names = list(inspect.signature(base).parameters)[1:]
    bind = partial(inspect.signature(own).bind, None)
    if not _takes(bind, *names) or not _takes(bind, **dict.fromkeys(names)):
        return [f"{hook}{_signature(own)} is called as {hook}{_signature(base)}; take the same arguments"]
    return []


def _misspelt(cls: type[AsyncRolloutLoop]) -> list[str]:
    """A sentence for each method whose name is all but a hook's: nobody would ever call it."""
    own = {
        name: value
        for base in cls.__mro__
        if base not in AsyncRolloutLoop.__mro__
        for name, value in vars(base).items()
    }
    methods = [
        name for name, value in own.items() if inspect.isfunction(value) and name not in HOOKS and name[0] != "_"
    ]
    meant = {name: get_close_matches(name, HOOKS, n=1, cutoff=ALL_BUT_ALIKE) for name in methods}
    return [
        f'{name} is no hook and would never be called; did you mean "{hooks[0]}"? A method of your own may begin with an underscore'
        for name, hooks in meant.items()
        if hooks
    ]


def _takes(bind: Callable[..., object], *args: Any, **kwargs: Any) -> bool:
    try:
        bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _signature(function: Callable[..., Any]) -> str:
    """Without types."""
    signature = inspect.signature(function)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
