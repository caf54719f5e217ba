"""Advantages as the papers' recipes give them: the golden values of docs/spec/papers.md, to 1e-6 (P-916)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from agrpo.advantages import advantages
from agrpo.aggregations import aggregations
from agrpo.losses import losses
from agrpo.records.group_rewards import GroupRewards
from agrpo.records.rollout import Stay
from agrpo.records.score import Score, total_rewards
from agrpo.records.tokens import StepTotals, TokenInputs
from agrpo.stages.scorer import environment_score
from tests.stages.groups import a_group

G1, G2 = [1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]
"""F-3."""


def given(name: str, *groups: list[float] | GroupRewards, **settings: object) -> list[list[float]]:
    made = [group if isinstance(group, GroupRewards) else GroupRewards.of_totals(group) for group in groups]
    return [own.tolist() for own in advantages.build(name, settings)(made)]


def judged(*columns: list[float | None], weights: tuple[float, ...] = (1.0, 1.0)) -> GroupRewards:
    """A group by what each of its rewards said."""
    scores = [
        Score(reward=f"f{place}", weight=weight, values=values, errors=[None] * len(values))
        for place, (values, weight) in enumerate(zip(columns, weights, strict=True))
    ]
    return GroupRewards.of(scores, total_rewards(scores, [None] * len(columns[0])))


def near(values: list[float]) -> object:
    return pytest.approx(values, abs=1e-6)


@pytest.mark.spec("G-127")
def test_grpo_divides_by_the_groups_own_deviation() -> None:
    assert given("grpo", G1, G2) == [
        near([0.865875, -0.865875, -0.865875, 0.865875]),
        near([0.499900, 0.499900, 0.499900, -1.499700]),
    ]


@pytest.mark.spec("P-010.test", "G-129")
def test_dr_grpo_divides_neither_rewards_nor_lengths_by_what_varies() -> None:
    assert given("grpo", G1, scale="none") == [[0.5, -0.5, -0.5, 0.5]]
    # F-1: two completions of advantages 1 and -1, and the ratios of their tokens.
    ratios = torch.tensor([1.5, 0.9, 0.7, 1.1, 1.0, 2.0], dtype=torch.float64)
    tokens = TokenInputs(
        logprobs=ratios.log(),
        sampler_logprobs=torch.zeros(6, dtype=torch.float64),
        advantages=torch.tensor([1.0] * 2 + [-1.0] * 4, dtype=torch.float64),
        sample=torch.tensor([0] * 2 + [1] * 4),
        num_samples=2,
    )
    totals = StepTotals(num_tokens=6, num_samples=2, max_completion_length=10)
    loss = losses.build("clip", {"epsilon": 0.2})(tokens).loss
    assert aggregations.build("constant", {})(loss, tokens, totals).item() == pytest.approx(0.14, abs=1e-6)


@pytest.mark.spec("P-011.test", "G-128")
def test_lite_ppo_divides_by_the_deviation_of_the_batch() -> None:
    assert np.std([*G1, *G2], ddof=1) == pytest.approx(0.517549, abs=1e-6)
    assert given("grpo", G1, G2, scale="batch") == [
        near([0.965905, -0.965905, -0.965905, 0.965905]),
        near([0.482953, 0.482953, 0.482953, -1.448858]),
    ]
    assert given("grpo", G2) == [near([0.499900] * 3 + [-1.499700])]


@pytest.mark.spec("G-126", "G-128")
def test_a_rollout_that_nothing_scored_is_in_no_statistic_of_the_batch() -> None:
    with_gap = given("grpo", [math.nan, *G1], G2, [math.nan, math.nan], scale="batch")
    first, second = given("grpo", G1, G2, scale="batch")
    assert with_gap == [[0.0, *first], second, [0.0, 0.0]]


@pytest.mark.spec("P-102.test")
def test_rloo_holds_each_rollout_against_the_others() -> None:
    assert given("leave_one_out", G1) == [near([0.666667, -0.666667, -0.666667, 0.666667])]
    with_kl = [reward - 0.03 * kl for reward, kl in zip(G1, (0.5, 0.0, 1.0, 0.2), strict=True)]
    assert given("leave_one_out", with_kl) == [near([0.663667, -0.649667, -0.689667, 0.675667])]


def test_rloo_leaves_out_a_rollout_that_nothing_scored() -> None:
    assert given("leave_one_out", [1.0, math.nan, 0.0, 0.5]) == [near([0.75, 0.0, -0.75, 0.0])]


@pytest.mark.spec("P-019.test", "G-132")
def test_gdpo_keeps_patterns_of_rewards_apart_that_a_sum_throws_together() -> None:
    groups = judged([0, 1], [0, 0]), judged([0, 1], [0, 1])
    assert given("gdpo", *groups) == [near([-0.547680, 0.547680]), near([-1.095360, 1.095360])]
    # What comes before the division by the batch: 0.707007 and 1.414014.
    over = np.std([-0.707007, 0.707007, -1.414014, 1.414014], ddof=1) + 1e-4
    assert [value * over for own in given("gdpo", *groups) for value in own] == near(
        [-0.707007, 0.707007, -1.414014, 1.414014]
    )


@pytest.mark.spec("P-019.test", "G-131")
def test_summed_first_the_difference_is_lost() -> None:
    groups = judged([0, 1], [0, 0]), judged([0, 1], [0, 1])
    assert given("grpo", *groups) == [near([-0.707007, 0.707007]), near([-0.707057, 0.707057])]


@pytest.mark.spec("P-019.cfg", "P-019.obj")
def test_gdpo_weighs_each_reward_and_is_grpo_where_there_is_one() -> None:
    weighed = judged([0, 1, 1, 0], [0.2, 0.9, 0.4, 0.1], weights=(2.0, 0.5))
    other = judged([1, 1, 0, 0], [0.3, 0.3, 0.3, 0.3], weights=(2.0, 0.5))
    sums = [
        2.0 * (f - f.mean()) / (f.std(ddof=1) + 1e-4) + 0.5 * (g - g.mean()) / (g.std(ddof=1) + 1e-4)
        for f, g in ((np.array([0, 1, 1, 0.0]), np.array([0.2, 0.9, 0.4, 0.1])),)
    ]
    f = np.array([1, 1, 0, 0.0])
    sums.append(2.0 * (f - f.mean()) / (f.std(ddof=1) + 1e-4))
    batch = np.concatenate(sums)
    by_hand = [(own - batch.mean()) / (batch.std(ddof=1) + 1e-4) for own in sums]
    assert given("gdpo", weighed, other) == [near(own.tolist()) for own in by_hand]
    alone = judged([0.3, 1, 0.5], weights=(3.0,)), judged([0.1, 1, 0.0], weights=(3.0,))
    assert given("gdpo", *alone) == given("grpo", *alone)


@pytest.mark.spec("K22", "G-125", "P-019.gap")
def test_a_reward_that_says_nothing_is_left_out_of_sums_and_of_normalising() -> None:
    group = judged([1, 0, None, 1], [0.5, 0.5, 0.5, None])
    assert group.totals.tolist() == [1.5, 0.5, 0.5, 1.0]
    assert given("grpo", group, scale="none") == [[0.625, -0.375, -0.375, 0.125]]
    # f1 by itself: (1, 0, -, 1) gives (0.577, -1.154, -, 0.577); f2 is the same wherever it speaks, and gives 0.
    (found,) = given("gdpo", group)
    assert found[2] == 0.0
    assert found[0] == found[3] > 0 > found[1] == pytest.approx(-2 * found[0])
    spread = judged([1, 0, None, 1], [0.5, 0.6, 0.9, None])
    (shared,) = given("gdpo", spread)
    column = np.array([0.5, 0.6, 0.9])
    parts = (column - column.mean()) / (column.std(ddof=1) + 1e-4)
    own = (1 / 3) / (math.sqrt(1 / 3) + 1e-4)
    before = np.array([own + parts[0], -2 * own + parts[1], parts[2], own])
    assert shared == near((before / (before.std(ddof=1) + 1e-4)).tolist())


@pytest.mark.spec("K22", "G-126")
def test_a_group_that_nothing_scored_is_zero_and_moves_nobody() -> None:
    nothing = judged([None, None], [None, None])
    apart, together = judged([0, 1], [0.1, 0.4]), judged([0, 1], [0.2, 0.1])
    with_it = given("gdpo", apart, nothing, together)
    assert with_it[1] == [0.0, 0.0]
    assert [with_it[0], with_it[2]] == given("gdpo", apart, together)


def test_a_rollouts_own_reward_is_one_more_reward_of_weight_one() -> None:
    scores = [Score(reward="f", weight=0.5, values=[1.0, None, 0.0], errors=[None] * 3)]
    totals = total_rewards(scores, [2.0, 3.0, None])
    made = GroupRewards.of(scores, totals)
    assert made.weights.tolist() == [0.5, 1.0]
    assert np.array_equal(made.values, [[1.0, 2.0], [math.nan, 3.0], [0.0, 0.0]], equal_nan=True)
    assert GroupRewards.of(scores, total_rewards(scores, [None] * 3)).weights.tolist() == [0.5]


@pytest.mark.spec("G-124")
def test_rewards_are_weighed_and_summed_and_what_an_environment_pays_is_added_as_it_is() -> None:
    group = a_group(0)
    paid = [Stay(environment="Maze", reset_seconds=0.1, reward_seconds=0.1, reward=value) for value in (0.25, -1.0)]
    acted = replace(group, rollouts=[replace(one, stay=stay) for one, stay in zip(group.rollouts, paid, strict=True)])
    maze = environment_score(acted)
    assert maze is not None
    weighed = Score(reward="f", weight=0.5, values=[1.0, 3.0], errors=[None, None])
    assert total_rewards([weighed, maze], acted.rollout_rewards) == [0.75, 0.5]
    assert GroupRewards.of([weighed, maze], [0.75, 0.5]).weights.tolist() == [0.5, 1.0]
