"""How far the policy being trained is from the one that sampled (A-296 to A-300), and from the reference (G-255); trained tokens."""

from __future__ import annotations

from agrpo.metrics import StepFacts, weighted_mean


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Log-prob differences and entropy in nats; ratios before out-of-bounds tokens are masked."""
    samples = facts.samples
    if not samples:
        return {}
    tokens = [sample.num_trained_tokens for sample in samples]
    divergences = [sample.kl for sample in samples if sample.kl is not None]
    masses = [sample.sampler_mass for sample in samples if sample.sampler_mass is not None]
    return {
        "entropy": weighted_mean([sample.entropy_mean for sample in samples], tokens),
        "sampling/sampling_logp_difference/mean": weighted_mean(
            [sample.logprob_difference_mean for sample in samples], tokens
        ),
        "sampling/sampling_logp_difference/max": max(sample.logprob_difference_max for sample in samples),
        "sampling/importance_sampling_ratio/min": min(sample.ratio_min for sample in samples),
        "sampling/importance_sampling_ratio/mean": weighted_mean([sample.ratio_mean for sample in samples], tokens),
        "sampling/importance_sampling_ratio/max": max(sample.ratio_max for sample in samples),
        "sampling/masked_mean": weighted_mean([sample.masked_share for sample in samples], tokens),
        "sampling/sampler_mass": weighted_mean(masses, tokens) if len(masses) == len(samples) else None,
        "kl": weighted_mean(divergences, tokens) if len(divergences) == len(samples) else None,
    }
