"""What metrics count of groups that were dropped whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agrpo.metrics import StepFacts, measure_step
from agrpo.records.progress import Drop, DropReason, Plan
from agrpo.records.score import Score, ScoredGroup
from agrpo.records.timings import StepTimings
from agrpo.stages.scorer import scored_group
from tests.stages.groups import a_group


def facts(group: ScoredGroup, reason: DropReason) -> StepFacts:
    plan = Plan(
        attempt=0,
        step=1,
        tickets=[],
        drops=[Drop(ticket=group.ticket, reason=reason)],
        samples=[],
        rows=[],
        num_trained_tokens=0,
        version=0,
        learning_rate=0.0,
        seed=0,
        publish=None,
        config_digest="",
        planned_at=0.0,
    )
    return StepFacts(
        plan=plan,
        consumed=[group],
        samples=[],
        rows=[],
        micro_tokens=4,
        loss=0.0,
        grad_norm=0.0,
        num_tokens=0,
        timings=StepTimings(),
    )


def scored(lengths: tuple[int, ...]) -> ScoredGroup:
    values = [None if length == 0 else 1.0 for length in lengths]
    score = Score(reward="judge", weight=1.0, values=values, errors=[None] * len(lengths))
    return scored_group(a_group(0, lengths=lengths), [score], 4)


@pytest.mark.spec("A-336")
def test_the_samples_of_a_stale_group_are_counted_and_failed_rollouts_are_none():
    measures = measure_step(facts(scored((3, 0, 5)), DropReason.STALE))
    assert measures["sample/dropped_stale_count"] == 2.0
    assert measures["batch/dropped_oversize_count"] == 0.0


@pytest.mark.spec("A-161", "A-347")
def test_the_samples_of_an_oversize_group_are_counted():
    measures = measure_step(facts(scored((3, 4, 5)), DropReason.OVERSIZE))
    assert measures["batch/dropped_oversize_count"] == 3.0
    assert measures["completions/mean_length"] == 4.0
    assert "loss" not in measures


@pytest.mark.spec("A-281")
def test_scores_of_a_stale_group_are_in_the_measures_of_the_step_that_dropped_it():
    group = replace(scored((3, 3)), duplicates=[False, True])
    measures = measure_step(facts(group, DropReason.STALE))
    assert (measures["reward"], measures["rewards/judge/mean"]) == (1.0, 1.0)
    assert measures["frac_zero_std_groups"] == 1.0
    assert measures["completions/duplicate_frac"] == 0.5
    assert "reward_trained" not in measures
