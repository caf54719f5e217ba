"""Filters: which scored groups may take a place in a step. Each says yes or no of a group by its scores alone.

A filter is a part of this room, or a class of yours that a run names as `package.module:Class`. It is frozen and keeps nothing:
the same group always gets the same answer, whoever asks and whenever. The answer is written down with the group's scores.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pydantic

from agrpo.errors import AgrpoError, ConfigError, FilterError
from agrpo.loading import module_named
from agrpo.registry import Registry, knobs_of, nearest, problems_of

if TYPE_CHECKING:
    from agrpo.config import FilterSection
    from agrpo.records.score import ScoredGroup


class Filter(Protocol):
    """A filter. Its fields are its knobs."""

    def __call__(self, group: ScoredGroup) -> bool:
        """Whether the group may be trained. It has at least one answer, and its rewards and marks are set."""
        ...


filters: Registry[Filter] = Registry("agrpo.filters")


def load_filters(sections: Sequence[FilterSection]) -> dict[str, Filter]:
    """The run's filters by name, in order. Raises `FilterError`, or `ConfigError` for their settings."""
    return {section.name: load_filter(section) for section in sections}


def load_filter(section: FilterSection) -> Filter:
    """One filter, ready to be called. Raises as `load_filters`."""
    if ":" not in section.name:
        return filters.build(section.name, section.settings)
    cls = _class_at(section.name)
    try:
        return cls(**section.settings)
    except pydantic.ValidationError as error:
        raise ConfigError(problems_of(error, knobs_of(cls), f'filter "{section.name}": ')) from None


def check_filter(section: FilterSection) -> list[str]:
    """What keeps the filter from being used here, a sentence each. It imports the filter's module."""
    try:
        load_filter(section)
    except ConfigError as error:
        return error.problems
    except AgrpoError as error:
        return [str(error)]
    return []


def left_out_by(loaded: Mapping[str, Filter], group: ScoredGroup) -> str | None:
    """Name of the first filter that leaves the group out; None: it may be trained.

    Raises `FilterError` for a filter that fails, or says neither True nor False.
    """
    return next((name for name, own in loaded.items() if not _answer(name, own, group)), None)


def _answer(name: str, own: Filter, group: ScoredGroup) -> bool:
    try:
        found: Any = own(group)
    except Exception as error:
        raise FilterError(
            f'filter "{name}" failed on ticket {group.ticket}: {type(error).__name__}: {error}. Mend it, then `agrpo resume` '
            "this run"
        ) from error
    if not isinstance(found, bool):
        raise FilterError(
            f'filter "{name}" gave {found!r} for ticket {group.ticket}; expected True, it may be trained, or False'
        )
    return found


def _class_at(path: str) -> type[Any]:
    module_name, _, name = path.partition(":")
    module = module_named(module_name, path, FilterError, "filter ")
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        known = [own for own, value in vars(module).items() if inspect.isclass(value) and not own.startswith("_")]
        raise FilterError(f'filter "{path}": {module_name} has no class "{name}"; {nearest(name, known)}')
    if "__agrpo_part__" not in vars(found):
        raise FilterError(
            f'filter "{path}" is a plain class, which may remember; a replay asks no filter again, so that it has to say the '
            "same of a group at any time: write `@part` (from agrpo.registry) above it, which freezes it"
        )
    call = inspect.getattr_static(found, "__call__", None)
    if (
        not inspect.isfunction(call)
        or inspect.iscoroutinefunction(call)
        or len(inspect.signature(call).parameters) != 2
    ):
        raise FilterError(f'filter "{path}": expected def __call__(self, group: ScoredGroup) -> bool')
    return found


__all__ = ["Filter", "check_filter", "filters", "left_out_by", "load_filter", "load_filters"]
