"""Sampling: how far the policy being trained is from the one that sampled, and from the reference (A-296 to A-300, G-248 to G-262)."""

from __future__ import annotations

from agrpo.metrics import StepFacts, extreme, mean, mean_of_samples, weighted_mean
from agrpo.records.outcome import SampleOutcome


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Log-prob differences, divergence and entropy in nats; ratios before out-of-bounds tokens are masked."""
    samples = facts.samples
    if not samples:
        return {}
    tokens = [sample.num_trained_tokens for sample in samples]
    return {
        "entropy": weighted_mean([sample.entropy_mean for sample in samples], tokens),
        "kl": mean_of_samples([sample.kl for sample in samples], samples),
        "vespo/phi_seq_mean": mean(sample.phi for sample in samples if sample.phi is not None),
        "sampling/sampling_logp_difference/mean": weighted_mean(
            [sample.logprob_difference_mean for sample in samples], tokens
        ),
        "sampling/sampling_logp_difference/max": max(sample.logprob_difference_max for sample in samples),
        **_ratios(samples, by_samples=facts.corrections_of_samples),
        "sampling/masked_mean": weighted_mean([sample.masked_share for sample in samples], tokens),
        "sampling/sampler_mass": mean_of_samples([sample.sampler_mass for sample in samples], samples),
    }


def _ratios(samples: list[SampleOutcome], *, by_samples: bool) -> dict[str, float | None]:
    """The correction's weights where there is one, else the ratio of policy to sampler."""
    weights = mean_of_samples([sample.correction_mean for sample in samples], samples, by_samples=by_samples)
    if weights is None:
        low, middle, high = (
            min(sample.ratio_min for sample in samples),
            mean_of_samples([sample.ratio_mean for sample in samples], samples),
            max(sample.ratio_max for sample in samples),
        )
    else:
        low, middle, high = (
            extreme(min, (sample.correction_min for sample in samples)),
            weights,
            extreme(max, (sample.correction_max for sample in samples)),
        )
    name = "sampling/importance_sampling_ratio"
    return {f"{name}/min": low, f"{name}/mean": middle, f"{name}/max": high}
