"""Rewards: what the groups of a step earned (A-291, A-293, A-295)."""

from __future__ import annotations

import math
from statistics import fmean

from agrpo.metrics import StepFacts
from agrpo.records.score import Mark, ScoredGroup

_NO_VARIANCE = {Mark.EQUAL_REWARDS, Mark.TOO_FEW_SCORES, Mark.FAILED}


def measure(facts: StepFacts) -> dict[str, float]:
    """`reward`: mean over scored rollouts of all consumed groups.

    `reward_trained`: mean over trained samples of groups whose rewards differ; `frac_zero_std_groups`: share of groups
    with equal rewards or fewer than two scores.
    """
    measures: dict[str, float] = {}
    groups = [group for group in facts.consumed if Mark.REFUSED_PROMPT not in group.marks]
    scored = [reward for group in groups for reward in group.rewards if not math.isnan(reward)]
    if scored:
        measures["reward"] = fmean(scored)
    trained = _trained_rewards(facts)
    if trained:
        measures["reward_trained"] = fmean(trained)
    if groups:
        measures["frac_zero_std_groups"] = fmean(bool(group.marks & _NO_VARIANCE) for group in groups)
    return measures


def _trained_rewards(facts: StepFacts) -> list[float]:
    by_ticket: dict[int, ScoredGroup] = {group.ticket: group for group in facts.consumed}
    return [
        by_ticket[sample.ticket].rewards[sample.rollout_index]
        for sample in facts.samples
        if not by_ticket[sample.ticket].marks & _NO_VARIANCE
    ]
