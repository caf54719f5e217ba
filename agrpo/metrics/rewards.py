"""Rewards: what the groups of a step earned (A-289 to A-295), and what rewards noted of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from agrpo.metrics import StepFacts, mean
from agrpo.metrics.names import added_up
from agrpo.records.score import NOT_ASKED, Mark, ScoredGroup

_NO_VARIANCE = {Mark.EQUAL_REWARDS, Mark.TOO_FEW_SCORES, Mark.FAILED}


def measure(facts: StepFacts) -> dict[str, float | None]:
    """`reward`: mean over scored rollouts of all consumed groups.

    `reward_trained`: mean over trained samples of groups whose rewards differ; `frac_zero_std_groups`: share of groups
    with equal rewards or fewer than two scores; `reward_zero_std_groups`: mean over those groups of their mean reward.
    `reward_group_std`: sample standard deviation inside the group, over trained samples.
    """
    groups = [group for group in facts.consumed if not group.marks & NOT_ASKED]
    totals = {group.ticket: _numbers(group.rewards) for group in groups}
    flat = {group.ticket for group in groups if group.marks & _NO_VARIANCE}
    return {
        "reward": mean(reward for scored in totals.values() for reward in scored),
        "reward_trained": mean(_trained_rewards(facts)),
        "reward_group_std": _group_std(facts, totals),
        "reward_zero_std_groups": mean(fmean(totals[ticket]) for ticket in flat if totals[ticket]),
        "frac_zero_std_groups": mean(group.ticket in flat for group in groups),
        **_by_name(facts),
        **_noted(facts),
    }


def _noted(facts: StepFacts) -> dict[str, float | None]:
    """What rewards noted of their calls with `log_metric`, each added up by the rule of its name (G-186)."""
    noted: defaultdict[str, list[float]] = defaultdict(list)
    for group in facts.consumed:
        for score in group.scores:
            for name, value in score.metrics.items():
                noted[name].append(value)
    return {name: added_up(name, values) for name, values in noted.items()}


def _by_name(facts: StepFacts) -> dict[str, float | None]:
    """Each reward's own values, before its weight."""
    given: defaultdict[str, dict[int, list[float]]] = defaultdict(dict)
    for group in facts.consumed:
        for score in group.scores:
            given[score.reward][group.ticket] = [value for value in score.values if value is not None]
    measures = _failed(facts)
    for name, values in given.items():
        measures[f"rewards/{name}/mean"] = mean(value for group in values.values() for value in group)
        measures[f"rewards/{name}/group_std"] = _group_std(facts, values)
    return measures


def _failed(facts: StepFacts) -> dict[str, float | None]:
    """Share of the rollouts with an answer that a reward should have judged and could not."""
    failures: defaultdict[str, list[bool]] = defaultdict(list)
    for group in facts.consumed:
        for score in group.scores:
            for prompted, error in zip(group.num_prompt_tokens, score.errors, strict=True):
                if prompted:
                    failures[score.reward].append(error is not None)
    return {f"rewards/{name}/failed_frac": mean(failed) for name, failed in failures.items()}


def _group_std(facts: StepFacts, values: Mapping[int, list[float]]) -> float | None:
    """Sample standard deviation inside each group, by ticket, averaged over trained samples."""
    spreads = {ticket: _std(own) for ticket, own in values.items() if len(own) > 1}
    return mean(spreads[sample.ticket] for sample in facts.samples if sample.ticket in spreads)


def _std(values: list[float]) -> float:
    """Sample standard deviation, without the exact fractions of `statistics`, which cost ten times as much.

    `math.dist` squares nothing that would overflow: a reward may be any finite number.
    """
    return math.dist(values, [fmean(values)] * len(values)) / math.sqrt(len(values) - 1)


def _numbers(rewards: Iterable[float]) -> list[float]:
    """Those of rollouts that a reward scored."""
    return [reward for reward in rewards if not math.isnan(reward)]


def _trained_rewards(facts: StepFacts) -> list[float]:
    by_ticket: dict[int, ScoredGroup] = {group.ticket: group for group in facts.consumed}
    return [
        by_ticket[sample.ticket].rewards[sample.rollout_index]
        for sample in facts.samples
        if not by_ticket[sample.ticket].marks & _NO_VARIANCE
    ]
