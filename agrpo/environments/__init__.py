"""Environments: worlds of yours in which the policy acts, one instance for each rollout that runs.

`factories` finds what makes them and looks them over, `pool` lends each instance to one rollout at a time and replaces what
hangs or breaks, `checking` says before a run starts what would keep it from working. `adapters` are environments that live
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agrpo.config import FactorySection

if TYPE_CHECKING:
    from agrpo.config import EnvironmentsSection
    from agrpo.tools import Tool

ONLY = ""
"""Name of a run's only environment, which rows need not pick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of a run's environments."""

    path: str
    """As the run's file has it."""
    factory: Callable[[], Any]
    class_name: str
    """Under which its rewards are told."""
    cls: type[Any]
    tools: Mapping[str, Tool]
    """Its public methods, by name. `bound_tools` makes them an instance's."""
    reset_is_async: bool
    reset_names: frozenset[str] | None
    """Columns that `reset` takes. None: all of them."""
    reset_needs: frozenset[str]
    """Those without a default."""
    reward_is_async: bool | None
    """None: it has no `get_reward`."""


def load_environments(section: EnvironmentsSection) -> dict[str, Kind]:
    """A run's environments by the name with which rows pick them. Raises `EnvironmentFault` or `ToolError`.

    A factory that has to be called for its class may take `environments.timeout_seconds`.
    """
    from agrpo.environments.checking import in_time
    from agrpo.environments.factories import kind_at

    return {
        name: kind_at(
            own.factory,
            lambda factory, path=own.factory: in_time(factory, f'making "{path}"', section.timeout_seconds),
            settings=own.settings,
        )
        for name, own in factories_of(section).items()
    }


def factories_of(section: EnvironmentsSection) -> dict[str, FactorySection]:
    """The factories, by the name with which rows pick them."""
    if section.factory is None:
        return {**section.factories}
    return {ONLY: FactorySection(factory=section.factory, settings=section.settings)}


__all__ = ["ONLY", "Kind", "factories_of", "load_environments"]
