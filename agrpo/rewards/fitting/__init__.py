"""Whether a reward's settings go together with what the run says around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agrpo.rewards import rewards

if TYPE_CHECKING:
    from agrpo.config import RewardSection


@runtime_checkable
class Timed(Protocol):
    """A reward with bounds of its own on time, which a call's `timeout_seconds` would cut short."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """By setting."""
        ...


@runtime_checkable
class Measuring(Protocol):
    """A reward that makes something of an answer's length."""

    def unreached(self, max_tokens: int) -> str | None:
        """What its settings say of lengths that no answer has, where none has more than `max_tokens`."""
        ...


def time_problems(section: RewardSection) -> list[str]:
    """A sentence for each bound on time that is never reached, since the call has ended by then."""
    reward = None if ":" in section.name else rewards.build(section.name, section.settings)
    return [
        f'reward "{section.name}": {name} = {seconds:g}: a whole call has rewards.timeout_seconds = {section.timeout_seconds:g}, '
        "and is killed before that; raise the second above the first"
        for name, seconds in (reward.seconds if isinstance(reward, Timed) else {}).items()
        if seconds >= section.timeout_seconds
    ]


def length_warnings(section: RewardSection, max_tokens: int) -> list[str]:
    """A sentence where the reward's lengths lie beyond those of any answer. `max_tokens`: of all its turns."""
    reward = None if ":" in section.name else rewards.build(section.name, section.settings)
    told = reward.unreached(max_tokens) if isinstance(reward, Measuring) else None
    return [] if told is None else [f'reward "{section.name}": {told}']
