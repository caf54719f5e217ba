"""What metrics say of rewards, worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agrpo.records.progress import DropReason
from agrpo.records.score import Mark
from tests.metrics.made import measured, sample, scored

HALF_SQRT2 = math.sqrt(0.5)
"""Sample standard deviation of 0 and 1."""


def test_the_total_is_weighted_and_each_rewards_own_mean_is_not():
    measures = measured([scored(0, {"one": [1.0, 1.0], "zero": [0.0, 0.0]}, {"one": 0.7, "zero": 0.3})])
    assert measures["reward"] == pytest.approx(0.7)
    assert (measures["rewards/one/mean"], measures["rewards/zero/mean"]) == (1.0, 0.0)


@pytest.mark.spec("A-289")
def test_a_rewards_mean_is_over_the_values_it_gave_in_dropped_groups_too():
    groups = [scored(0, {"a": [1.0, None, 0.0]}), scored(1, {"a": [1.0, 1.0, 1.0]}), scored(2, {"a": [None, None]})]
    measures = measured(groups, [sample(0), sample(0, 2)], drops={1: DropReason.EQUAL_REWARDS, 2: DropReason.STALE})
    assert measures["rewards/a/mean"] == 0.8


@pytest.mark.spec("A-290", "A-292")
def test_spreads_are_inside_each_group_and_averaged_over_trained_samples():
    groups = [scored(0, {"a": [0.0, 1.0], "b": [0.0, 2.0]}), scored(1, {"a": [0.0, 3.0], "b": [5.0, None]})]
    measures = measured(groups, [sample(0), sample(1, 0), sample(1, 1)])
    # Group 1 counts twice: two of the three samples are its own. "b" has one value there, hence no spread.
    assert measures["rewards/a/group_std"] == pytest.approx((1 + 2 * 3) * HALF_SQRT2 / 3)
    assert measures["rewards/b/group_std"] == pytest.approx(2 * HALF_SQRT2)
    # Sums: 0 and 3 in group 0, 5 and 3 in group 1.
    assert measures["reward_group_std"] == pytest.approx((3 + 2 * 2) * HALF_SQRT2 / 3)


@pytest.mark.spec("A-294", "A-295")
def test_groups_without_variance_say_what_they_earned_and_those_without_scores_do_not():
    groups = [
        scored(0, {"a": [1.0, 1.0]}),
        scored(1, {"a": [0.5, None]}),
        scored(2, {"a": [None, None]}),
        scored(3, {"a": [0.0, 1.0]}),
    ]
    measures = measured(groups, [sample(3), sample(3, 1)])
    assert measures["reward_zero_std_groups"] == 0.75
    assert measures["frac_zero_std_groups"] == 0.75
    assert measures["reward_trained"] == 0.5


def test_where_every_groups_rewards_differ_nothing_is_said_of_equal_ones():
    measures = measured([scored(0, {"a": [0.0, 1.0]})], [sample(0)])
    assert "reward_zero_std_groups" not in measures
    assert measures["frac_zero_std_groups"] == 0.0


def test_a_refused_prompt_has_no_rewards_and_is_no_group_without_variance():
    measures = measured([scored(0, {}, marks=frozenset({Mark.REFUSED_PROMPT}))])
    assert {name for name in measures if "reward" in name or "std" in name} == set()


def test_a_reward_that_failed_is_counted_over_the_rollouts_that_it_should_have_judged():
    group = scored(0, {"a": [1.0, None, None, None]}, lengths=(3, 3, 3, 0))
    (score,) = group.scores
    # One value, one failure, one rollout that the reward has nothing to say of, one without an answer.
    group = replace(group, scores=[replace(score, errors=[None, "raised", None, "no answer"])])
    assert measured([group])["rewards/a/failed_frac"] == pytest.approx(1 / 3)


def test_rewards_of_any_finite_size_have_a_deviation():
    measures = measured([scored(0, {"a": [1e200, -1e200]})], [sample(0)])
    assert measures["reward_group_std"] == pytest.approx(math.sqrt(2) * 1e200)


def test_a_family_that_fails_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def broken(facts: object) -> dict[str, float]:
        raise OverflowError("too large")

    monkeypatch.setattr("agrpo.metrics.rewards.measure", broken)
    measures = measured([scored(0, {"a": [0.0, 1.0]})], [sample(0)])
    assert "reward" not in measures
    assert measures["batch/samples_per_step"] == 1
    assert "goes without its measures of rewards" in caplog.text


@pytest.mark.spec("K26", "P-910")
def test_groups_that_were_dropped_for_equal_rewards_are_in_the_share_and_in_the_mean():
    rewards = [[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    groups = [scored(ticket, {"judge": own}) for ticket, own in enumerate(rewards)]
    measures = measured(groups, drops=dict.fromkeys((0, 1), DropReason.EQUAL_REWARDS), num_replaced=2)
    assert measures["frac_zero_std_groups"] == 0.5
    assert measures["reward"] == 9 / 16
