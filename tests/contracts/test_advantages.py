"""What holds for every advantage estimator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agrpo.advantages import Advantage, advantages
from agrpo.errors import ConfigError

GROUPS = [
    [1.0, 0.0, 0.0, 1.0],
    [0.2, math.nan, 0.9, 0.4, 0.4],
    [1e6, 1e6 + 1, 1e6 - 1],
    [math.nan, math.nan],
    [math.nan, 3.0],
    [0.3, 0.3, 0.3],
    [5.0],
]
ESTIMATORS = pytest.mark.parametrize("name", advantages.names())


def estimator(name: str) -> Advantage:
    return advantages.build(name, {})


@ESTIMATORS
@pytest.mark.parametrize("rewards", GROUPS)
def test_every_rollout_gets_one_finite_float32(name: str, rewards: list[float]) -> None:
    result = estimator(name)(np.array(rewards))
    assert result.dtype == np.float32 and result.shape == (len(rewards),)
    assert np.isfinite(result).all()


@ESTIMATORS
@pytest.mark.parametrize("rewards", GROUPS)
def test_an_unscored_rollout_gets_zero(name: str, rewards: list[float]) -> None:
    assert not estimator(name)(np.array(rewards))[np.isnan(rewards)].any()


@ESTIMATORS
def test_a_higher_reward_has_a_higher_advantage(name: str) -> None:
    result = estimator(name)(np.array([0.5, 0.0, 1.0]))
    assert result[1] < result[0] < result[2]


@ESTIMATORS
def test_order_in_the_group_does_not_matter(name: str) -> None:
    rewards = np.array([0.25, math.nan, 1.0, 0.5])
    np.testing.assert_array_equal(estimator(name)(rewards[::-1]), estimator(name)(rewards)[::-1])


@ESTIMATORS
def test_unknown_settings_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        advantages.build(name, {"no_such_knob": 1})
