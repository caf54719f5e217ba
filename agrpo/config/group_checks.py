"""Rules between settings that say which groups a step trains, and with which advantages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agrpo.config.sections import FilterSection, RewardSection
from agrpo.config.zero_variance import zero_variance_of
from agrpo.records.sampling import Sampling
from agrpo.registry import nearest

if TYPE_CHECKING:
    from agrpo.advantages import Advantage


def group_checks(
    tree: Mapping[str, Any],
    sections: Mapping[str, Any],
    sampling: Sampling,
    *,
    rewards: list[RewardSection],
    filters: list[FilterSection],
    advantage: Advantage,
) -> list[str]:
    """What no setting of groups can see alone. `tree`: the settings as they were given."""
    names = [one.name for one in filters]
    return [
        *_too_few(tree, sampling, advantage),
        *_endless_decay(tree, sections, filters),
        *(
            f'filters: "{name}" is listed twice; the groups that each leaves out could not be told apart'
            for name in sorted({name for name in names if names.count(name) > 1})
        ),
        *_unknown_rewards(sections, rewards, filters),
    ]


def _too_few(tree: Mapping[str, Any], sampling: Sampling, advantage: Advantage) -> Iterator[str]:
    if sampling.num_generations < advantage.min_group:
        name = tree.get("advantage", {}).get("name", "grpo")
        yield (
            f"engine.num_generations = {sampling.num_generations}: the advantage {name} compares the rollouts of a prompt; ask "
            f"for {advantage.min_group} at least"
        )


def _endless_decay(tree: Mapping[str, Any], sections: Mapping[str, Any], filters: list[FilterSection]) -> Iterator[str]:
    """A schedule that falls to the last step, and no last step that could be counted."""
    scheduler = sections["optimizer"].scheduler
    if scheduler not in ("linear", "cosine") or sections["stop"].max_steps is not None:
        return
    begins = f'optimizer.scheduler: "{scheduler}" decays to the last step, whose number is unknown'
    if zero_variance_of(tree) == "refill":
        yield f"{begins} when groups are refilled; set stop.max_steps, or step.zero_variance to keep or drop"
    elif sections["rollout_loop"].path:
        yield (
            f"{begins} with rollout_loop.path, whose filter_prompt may leave prompts out; set stop.max_steps, or a constant "
            "schedule"
        )
    elif filters:
        yield f"{begins} with filters, which may leave groups out; set stop.max_steps, or a constant schedule"


def _unknown_rewards(
    sections: Mapping[str, Any], rewards: list[RewardSection], filters: list[FilterSection]
) -> Iterator[str]:
    """Names of rewards that the run does not have. What environments pay is known by their classes, not here."""
    named = {"step.zero_variance_reward": sections["step"].zero_variance_reward}
    named |= {
        f"filters.{index}.reward": one.settings.get("reward")
        for index, one in enumerate(filters)
        if ":" not in one.name
    }
    known = [reward.name for reward in rewards]
    for where, name in named.items():
        if name is not None and name not in known and not sections["environments"].are_given:
            yield f'{where}: the run has no reward "{name}"; {nearest(name, known)}'
