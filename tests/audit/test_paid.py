"""Scores are held to what environments gave the rollouts of their group."""

from __future__ import annotations

from agrpo.audit.scores import Judged, MarkRules, odd_scores
from agrpo.records.score import Mark, Score, ScoredGroup

GROUP = Judged(
    prompt_id="a",
    sampler=(2, 0, 2, 2),
    base=0,
    refusal=None,
    filtered=False,
    completions=(3, 3),
    turns=(1, 1),
    own_rewards=(None, None),
    paid={"Game": (1.0, None)},
    failed=(False, False),
)


def scored_as(value: float | None) -> ScoredGroup:
    return ScoredGroup(
        ticket=0,
        prompt_id="a",
        model_version=2,
        model_step=2,
        model_ordinal=2,
        rewards=[2.0 if value is None else value, 2.0],
        scores=[
            Score(
                reward="Game" if value is not None else "Other",
                weight=1.0,
                values=[value or 2.0, None],
                errors=[None, None],
            ),
            Score(reward="flat", weight=1.0, values=[None, 2.0], errors=[None, None]),
        ],
        marks=frozenset() if value == 1.0 else frozenset({Mark.EQUAL_REWARDS}),
        num_completion_tokens=[3, 3],
        num_forwarded_tokens=[5, 5],
        num_turns=[1, 1],
    )


def test_scores_that_say_otherwise_than_the_environment_are_found():
    assert list(odd_scores(GROUP, scored_as(1.0), MarkRules(micro_tokens=100))) == []
    assert list(odd_scores(GROUP, scored_as(2.0), MarkRules(micro_tokens=100))) == [
        "its environment Game gave [1.0, None], its scores say [2.0, None]; expected the same"
    ]
    assert list(odd_scores(GROUP, scored_as(None), MarkRules(micro_tokens=100))) == [
        "its environment Game gave [1.0, None], its scores say None; expected the same"
    ]
