"""What holds for every advantage estimator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agrpo.advantages import Advantage, advantages
from agrpo.errors import ConfigError, RewardError
from agrpo.records.group_rewards import GroupRewards

GROUPS = [
    [1.0, 0.0, 0.0, 1.0],
    [0.2, math.nan, 0.9, 0.4, 0.4],
    [1e6, 1e6 + 1, 1e6 - 1],
    [math.nan, math.nan],
    [math.nan, 3.0],
    [0.3, 0.3, 0.3],
    [5.0],
]
SETTINGS = [
    *((name, {}) for name in advantages.names()),
    ("grpo", {"scale": "batch"}),
    ("grpo", {"scale": "none"}),
]
ESTIMATORS = pytest.mark.parametrize(("name", "settings"), SETTINGS)


def of_two(first: list[float], second: list[float]) -> GroupRewards:
    """Two rewards of weights 1 and 0.5; NaN where neither judges."""
    values = np.array([first, second]).T
    totals = np.where(np.isnan(values).all(axis=1), np.nan, np.nansum(values * [1.0, 0.5], axis=1))
    return GroupRewards(totals=totals, values=values, weights=np.array([1.0, 0.5]))


def a_step() -> list[GroupRewards]:
    """Every group by one reward, and by two of which the second sees the rollouts in the opposite order."""
    return [*map(GroupRewards.of_totals, GROUPS), *(of_two(own, own[::-1]) for own in GROUPS)]


def estimator(name: str, settings: dict[str, object]) -> Advantage:
    return advantages.build(name, settings)


@ESTIMATORS
def test_every_rollout_gets_one_finite_float32_and_one_that_was_not_scored_gets_zero(
    name: str, settings: dict[str, object]
) -> None:
    groups = a_step()
    found = estimator(name, settings)(groups)
    assert len(found) == len(groups)
    for group, own in zip(groups, found, strict=True):
        assert own.dtype == np.float32 and own.shape == group.totals.shape
        assert np.isfinite(own).all()
        assert not own[np.isnan(group.totals)].any()


@ESTIMATORS
def test_a_step_of_no_groups_has_no_advantages(name: str, settings: dict[str, object]) -> None:
    assert estimator(name, settings)([]) == []


@ESTIMATORS
def test_a_higher_reward_has_a_higher_advantage(name: str, settings: dict[str, object]) -> None:
    (result,) = estimator(name, settings)([GroupRewards.of_totals([0.5, 0.0, 1.0])])
    assert result[1] < result[0] < result[2]


@pytest.mark.spec("G-126")
@ESTIMATORS
def test_equal_rewards_and_single_scores_have_exactly_zero_whatever_else_is_in_the_step(
    name: str, settings: dict[str, object]
) -> None:
    groups = [GroupRewards.of_totals([0.1] * 3), of_two([1 / 3] * 3, [0.7] * 3), *a_step()]
    found = estimator(name, settings)(groups)
    assert not found[0].any() and not found[1].any()
    (alone,) = estimator(name, settings)([GroupRewards.of_totals([math.nan, 7.0, math.nan])])
    assert alone.tolist() == [0.0, 0.0, 0.0]


@ESTIMATORS
def test_order_in_the_group_does_not_matter(name: str, settings: dict[str, object]) -> None:
    rewards = np.array([0.25, math.nan, 1.0, 0.5])
    (there,) = estimator(name, settings)([GroupRewards.of_totals(rewards)])
    (back,) = estimator(name, settings)([GroupRewards.of_totals(rewards[::-1])])
    np.testing.assert_array_equal(back, there[::-1])


@ESTIMATORS
def test_a_group_that_stands_for_itself_does_not_see_the_others_of_its_step(
    name: str, settings: dict[str, object]
) -> None:
    part = estimator(name, settings)
    together = part(a_step())
    apart = [part([group])[0] for group in a_step()]
    same = all(np.array_equal(one, other) for one, other in zip(together, apart, strict=True))
    assert same is not part.spans_step


@ESTIMATORS
def test_it_needs_two_rollouts(name: str, settings: dict[str, object]) -> None:
    assert estimator(name, settings).min_group == 2


@ESTIMATORS
def test_an_infinite_reward_is_refused(name: str, settings: dict[str, object]) -> None:
    with pytest.raises(RewardError, match="an advantage needs finite ones"):
        estimator(name, settings)([GroupRewards.of_totals([0.0, math.inf])])


@ESTIMATORS
def test_unknown_settings_are_refused(name: str, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        advantages.build(name, {**settings, "no_such_knob": 1})
