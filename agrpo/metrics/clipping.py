"""Clipping: tokens outside the trust region, on the side where the clip acts (A-302 to A-306), trained tokens."""

from __future__ import annotations

from agrpo.metrics import StepFacts, weighted_mean


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Shares over all trained tokens, and the extreme share of one completion on each side."""
    samples = facts.samples
    if not samples:
        return {}
    tokens = [sample.num_trained_tokens for sample in samples]
    low = weighted_mean([sample.clipped_low_share for sample in samples], tokens)
    high = weighted_mean([sample.clipped_high_share for sample in samples], tokens)
    return {
        "clip_ratio/region_mean": low + high,
        "clip_ratio/low_mean": low,
        "clip_ratio/low_min": min(sample.clipped_low_share for sample in samples),
        "clip_ratio/high_mean": high,
        "clip_ratio/high_max": max(sample.clipped_high_share for sample in samples),
    }
