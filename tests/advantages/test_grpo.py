"""GRPO's advantage, by hand (K22, A-119, A-120)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agrpo.advantages import advantages
from agrpo.errors import ConfigError, RewardError
from agrpo.records.group_rewards import GroupRewards
from agrpo.records.score import Mark, Score, marks_of, total_rewards

NAN = math.nan


def advantage_of(rewards: list[float], **settings: object) -> list[float]:
    (found,) = advantages.build("grpo", settings)([GroupRewards.of_totals(rewards)])
    return found.tolist()


def score_of(name: str, values: list[float | None], weight: float = 1.0) -> Score:
    return Score(reward=name, weight=weight, values=values, errors=[None] * len(values))


@pytest.mark.spec("K22", "A-119", "A-120")
def test_an_unscored_rollout_is_left_out_and_gets_nothing() -> None:
    assert advantage_of([1, NAN, 0, 1], scale="none") == pytest.approx([1 / 3, 0, -2 / 3, 1 / 3], abs=1e-7)
    # mean 2/3; sample std sqrt((1/9 + 4/9 + 1/9) / 2) = 0.577350
    by_hand = [
        1 / 3 / (math.sqrt(1 / 3) + 1e-4),
        0,
        -2 / 3 / (math.sqrt(1 / 3) + 1e-4),
        1 / 3 / (math.sqrt(1 / 3) + 1e-4),
    ]
    assert advantage_of([1, NAN, 0, 1]) == pytest.approx(by_hand, abs=1e-7)
    assert [round(each, 4) for each in advantage_of([1, NAN, 0, 1])] == [0.5773, 0.0, -1.1545, 0.5773]


@pytest.mark.spec("K22", "A-117", "A-118")
def test_rewards_are_summed_before_they_are_compared() -> None:
    totals = total_rewards([score_of("f1", [1, 0, None, 1]), score_of("f2", [0.5, 0.5, 0.5, None])], [None] * 4)
    assert totals == [1.5, 0.5, 0.5, 1.0]
    assert advantage_of(totals, scale="none") == [0.625, -0.375, -0.375, 0.125]


@pytest.mark.spec("K22", "A-119")
def test_a_group_nobody_scored_is_zero_and_counted() -> None:
    totals = total_rewards([score_of("f1", [None] * 3)], [None] * 3)
    assert all(math.isnan(total) for total in totals)
    assert advantage_of(totals) == [0.0, 0.0, 0.0]
    assert marks_of(totals) == {Mark.TOO_FEW_SCORES}


@pytest.mark.spec("A-117", "A-118")
def test_a_rollouts_own_reward_joins_the_sum() -> None:
    assert total_rewards([score_of("f", [1.0, None], weight=0.5)], [2.0, 3.0]) == [2.5, 3.0]


@pytest.mark.spec("A-120")
def test_one_scored_rollout_has_nothing_to_be_compared_with() -> None:
    assert advantage_of([NAN, 7.0, NAN]) == [0.0, 0.0, 0.0]


@pytest.mark.spec("A-120")
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e-300, 12345.678])
def test_equal_rewards_give_exactly_zero(reward: float) -> None:
    assert advantage_of([reward] * 3) == [0.0, 0.0, 0.0]
    assert advantage_of([reward, reward, NAN], scale="none") == [0.0, 0.0, 0.0]


@pytest.mark.spec("A-120")
def test_the_deviation_is_the_samples_and_epsilon_is_added_to_it() -> None:
    # mean 2, sample std sqrt(2) (population's would be 1)
    assert advantage_of([1, 3], epsilon=0.5) == pytest.approx([-1 / (math.sqrt(2) + 0.5), 1 / (math.sqrt(2) + 0.5)])


def test_the_result_is_float32_and_the_rewards_are_untouched() -> None:
    rewards = np.array([0.0, NAN, 1.0])
    (result,) = advantages.build("grpo", {})([GroupRewards.of_totals(rewards)])
    assert result.dtype == np.float32
    assert np.array_equal(rewards, [0.0, NAN, 1.0], equal_nan=True)


def test_an_infinite_reward_is_refused() -> None:
    with pytest.raises(RewardError, match="an advantage needs finite ones"):
        advantage_of([0.0, math.inf])


@pytest.mark.parametrize("settings", [{"scale": "step"}, {"epsilon": 0}, {"epsilon": math.inf}, {"normalise": True}])
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        advantages.build("grpo", settings)
