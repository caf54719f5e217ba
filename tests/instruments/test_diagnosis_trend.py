"""Rising, falling, or too noisy to say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from agrpo.instruments.diagnosis.trend import Direction, Trend, trend_of

STEPS = list(range(1, 41))


def of(curve: Callable[[int], float], least: float = 0.0) -> Trend:
    return trend_of(STEPS, [curve(step) for step in STEPS], least)


def test_a_line_goes_where_it_goes_and_is_told_by_its_quarters():
    assert of(lambda step: 0.1 * step) == Trend(direction=Direction.RISING, first=0.55, last=3.55)
    assert of(lambda step: -0.1 * step) == Trend(direction=Direction.FALLING, first=-0.55, last=-3.55)
    assert of(lambda _: 0.5).direction is Direction.FLAT


def test_a_change_smaller_than_the_least_is_none():
    assert of(lambda step: step, least=30.0).direction is Direction.RISING
    assert of(lambda step: step, least=30.1).direction is Direction.FLAT


def test_one_wild_step_is_no_trend_and_hides_none():
    assert of(lambda step: 1e6 if step == 40 else float(step % 2)).direction is Direction.FLAT
    assert of(lambda step: 60.0 if step == 5 else float(step)).direction is Direction.RISING


def test_the_noise_decides_how_small_a_change_can_be_seen():
    noise = random.Random(0)
    values = [noise.gauss(0, 1) for _ in STEPS]
    assert of(lambda step: 0.01 * step + 0.01 * values[step - 1]).direction is Direction.RISING
    assert of(lambda step: 0.01 * step + values[step - 1]).direction is Direction.FLAT


@pytest.mark.parametrize(
    "curve",
    [
        lambda step: 1 - math.exp(-step / 8),
        lambda step: 1 / (1 + math.exp((30 - step) / 3)),
        lambda step: float(step > 25),
    ],
)
def test_curves_and_jumps_are_seen_through_noise(curve: Callable[[int], float]):
    for seed in range(50):
        noise = random.Random(seed)
        assert of(lambda step, noise=noise: curve(step) + noise.gauss(0, 0.1)).direction is Direction.RISING


@pytest.mark.parametrize(("correlation", "most"), [(0.0, 0), (0.3, 2), (0.5, 5)])
def test_a_measure_that_only_wanders_hardly_ever_goes_anywhere(correlation: float, most: int):
    wandered = 0
    for seed in range(500):
        chance, drift, values = random.Random(seed), 0.0, list[float]()
        for _ in STEPS:
            drift = correlation * drift + chance.gauss(0, 1)
            values.append(drift)
        wandered += trend_of(STEPS, values, 0.0).direction is not Direction.FLAT
    assert wandered <= most
