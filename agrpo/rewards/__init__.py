"""Rewards: how good each rollout of a group was. A fact, recorded once; what to make of it is the learner's decision.

A reward is a part of this room, or a function of yours that a run names as `package.module:function`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from agrpo.errors import AgrpoError, RewardError
from agrpo.records.group import RolloutGroup
from agrpo.records.rollout import Rollout
from agrpo.records.score import Unjudged
from agrpo.registry import Registry
from agrpo.rewards.calling import Call
from agrpo.rewards.functions import AsyncFunctionReward, FunctionReward, is_async, reward_function

if TYPE_CHECKING:
    from agrpo.config import RewardSection


class Reward(Protocol):
    """A judge. It runs in a process that may be killed, and must keep nothing from one call to the next."""

    @property
    def whole_group(self) -> bool:
        """Whether rollouts are compared with each other, so that none can be judged alone."""
        ...

    def __call__(self, group: RolloutGroup) -> Sequence[float | Unjudged | None]:
        """One finite number per rollout, None where there is nothing to say. What it raises is the value's reason.

        `Unjudged` in the place of a number says why this one alone has none.
        """
        ...


class AsyncReward(Protocol):
    """A judge that waits for something outside, such as a service. It runs on the scorer's loop and must not block it."""

    @property
    def whole_group(self) -> bool:
        """As for `Reward`."""
        ...

    async def __call__(self, group: RolloutGroup) -> Sequence[float | None]:
        """As for `Reward`."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """A reward with something to import, once per process and before any call is timed."""

    def prepare(self) -> None:
        """Import it. Raises `MissingPackage`."""
        ...


@runtime_checkable
class Resident(Protocol):
    """A reward that holds what is dear to load. One process loads it, stays, and judges call after call, one at a time."""

    @property
    def load_seconds(self) -> float:
        """Most time of `load`."""
        ...

    @property
    def on_gpu(self) -> bool:
        """Whether its process sees the GPUs. Its memory is bound by `memory_bytes` only where it does not."""
        ...

    def load(self) -> Reward:
        """What judges. It must give the same for a group whatever it judged before. Raises `RewardError`."""
        ...


@runtime_checkable
class Needing(Protocol):
    """A reward that can say nothing of a prompt without certain facts."""

    @property
    def needed_facts(self) -> Sequence[str]:
        """Their names, which are columns of the dataset."""
        ...


@runtime_checkable
class Noting(Protocol):
    """A reward that asks how far the run is, or notes more than its values."""

    def judge_and_note(self, group: RolloutGroup, call: Call) -> Any:
        """What calling the reward gives. It is asked this way in place of being called."""
        ...


rewards: Registry[Reward | AsyncReward] = Registry("agrpo.rewards")


def load_reward(section: RewardSection) -> Reward | AsyncReward:
    """The reward a run names, ready to be called. Raises `RewardError`, `ConfigError` or `MissingPackage`."""
    return load_named(section.name, section.settings)


def load_named(name: str, settings: Mapping[str, Any]) -> Reward | AsyncReward:
    """As `load_reward`, for a process that has no use for a run's configuration."""
    if ":" in name:
        if settings:
            raise RewardError(f'reward "{name}" is a function and has no settings; remove: {", ".join(settings)}')
        return reward_function(name)
    reward = rewards.build(name, settings)
    if isinstance(reward, Preparing):
        reward.prepare()
    return reward


def check_reward(section: RewardSection) -> list[str]:
    """What keeps the reward from being loaded here; nothing where it loads. It imports the reward's module."""
    try:
        load_reward(section)
    except (AgrpoError, ImportError) as error:
        return [str(error)]
    return []


def check_facts(section: RewardSection, columns: Collection[str]) -> list[str]:
    """A sentence for each fact that the reward needs and none of the prompts has. One that cannot be loaded needs none."""
    try:
        reward = load_reward(section)
    except (AgrpoError, ImportError):
        return []
    return [
        f'reward "{section.name}" needs "{name}", which no prompt has (they have: {", ".join(sorted(columns)) or "nothing"}); '
        "rename a column of the dataset, or name the column in the reward's settings where it has one for that"
        for name in (reward.needed_facts if isinstance(reward, Needing) else ())
        if name not in columns
    ]


def resident_of(section: RewardSection) -> Resident | None:
    """The reward where it is one that stays loaded, not loaded yet. A function's module is not imported.

    Raises `ConfigError`.
    """
    reward = None if ":" in section.name else rewards.build(section.name, section.settings)
    return reward if isinstance(reward, Resident) else None


def awaits(reward: Reward | AsyncReward) -> TypeGuard[AsyncReward]:
    """Whether calling the reward gives something to wait for."""
    return is_async(reward)


def answer_of(rollout: Rollout, after: str = "</think>") -> str:
    """The text of the last assistant message behind the last `after`, or all of it; stripped."""
    for message in reversed(rollout.completion):
        if message.get("role") == "assistant":
            return str(message.get("content") or "").rpartition(after)[2].strip()
    return ""


def fact_of(group: RolloutGroup, name: str, reward: str) -> Any:
    """A fact of the group's prompt. Raises `RewardError` that names the facts there are."""
    facts: Mapping[str, Any] = group.prompt.facts
    if name not in facts:
        known = ", ".join(sorted(facts)) or "none"
        raise RewardError(
            f'reward "{reward}" needs the fact "{name}", which the prompt does not have (it has: {known}); '
            "facts are the columns of the dataset beside the prompt"
        )
    return facts[name]


__all__ = [
    "AsyncFunctionReward",
    "AsyncReward",
    "Call",
    "FunctionReward",
    "Needing",
    "Noting",
    "Preparing",
    "Resident",
    "Reward",
    "answer_of",
    "awaits",
    "check_facts",
    "check_reward",
    "fact_of",
    "load_named",
    "load_reward",
    "resident_of",
    "rewards",
]
