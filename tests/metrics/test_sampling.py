"""What is said of sampling, from what the learner saw of samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.metrics.made import measured, sample, scored


@pytest.mark.spec("A-299")
def test_sampler_mass_is_a_mean_over_trained_tokens():
    seen = [
        replace(sample(0, 0, num_trained=3), sampler_mass=0.9),
        replace(sample(0, 1, num_trained=1), sampler_mass=0.5),
    ]
    measures = measured([scored(0, {"r": [1.0, 0.0]})], seen)
    assert measures["sampling/sampler_mass"] == pytest.approx(0.8)


@pytest.mark.spec("G-255")
def test_divergence_is_a_mean_over_trained_tokens():
    samples = [replace(sample(0, 0, num_trained=3), kl=0.9), replace(sample(0, 1, num_trained=1), kl=0.5)]
    assert measured([scored(0, {"r": [1.0, 0.0]})], samples)["kl"] == pytest.approx(0.8)


def test_without_a_reference_policy_there_is_no_divergence():
    assert "kl" not in measured([scored(0, {"r": [1.0, 0.0]})], [sample(0)])


@pytest.mark.spec("A-299")
def test_objective_that_reads_no_top_tokens_has_no_sampler_mass():
    assert "sampling/sampler_mass" not in measured([scored(0, {"r": [1.0, 0.0]})], [sample(0)])
