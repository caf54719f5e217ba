from __future__ import annotations

from pathlib import Path

from matplotlib.image import imread

from agrpo.quickstart.evaluate import PassRate
from agrpo.quickstart.plots import plot_pass_rates, plot_rewards, smoothed


def test_the_reward_curve_is_a_picture_a_thousand_pixels_wide(tmp_path: Path):
    file = tmp_path / "plots" / "reward.png"
    plot_rewards([0.3, 0.35, 0.6, 0.8, 0.9, 0.95], file, title="thinking, seed 1")
    height, width, _ = imread(file).shape
    assert (width, height) == (1000, 600)


def test_lengths_measured_on_one_side_only_are_drawn_too(tmp_path: Path):
    before = {length: _greedy(0.9 - 0.1 * length) for length in range(5, 9)}
    after = {length: _greedy(0.9) for length in range(6, 12)}
    plot_pass_rates(before, after, tmp_path / "rates.png", trained=range(6, 10), title="sorting")
    assert imread(tmp_path / "rates.png").shape[:2] == (600, 1000)


def test_a_smoothed_value_is_the_mean_of_the_last_five():
    assert smoothed([1.0, 0.0, 2.0, 1.0, 1.0, 6.0]) == [1.0, 0.5, 1.0, 1.0, 1.0, 2.0]


def _greedy(rate: float) -> PassRate:
    return PassRate(num_questions=100, greedy=rate, sampled=rate / 2, any_sample=rate)
