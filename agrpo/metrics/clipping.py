"""Clipping: ratios outside the trust region, on the side where the clip acts (A-302 to A-306), and weights that are cut (G-261).

Of trained tokens, or of samples where a ratio is a whole sample's. A loss without such a region or cap has nothing to say.
"""

from __future__ import annotations

from agrpo.metrics import StepFacts, extreme, mean_of_samples


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Shares over all of them, and the extreme share of one completion on each side."""
    samples, by_samples = facts.samples, facts.ratios_of_samples
    low = mean_of_samples([sample.clipped_low_share for sample in samples], samples, by_samples=by_samples)
    high = mean_of_samples([sample.clipped_high_share for sample in samples], samples, by_samples=by_samples)
    return {
        "clip_ratio/region_mean": None if low is None or high is None else low + high,
        "clip_ratio/low_mean": low,
        "clip_ratio/low_min": extreme(min, (sample.clipped_low_share for sample in samples)),
        "clip_ratio/high_mean": high,
        "clip_ratio/high_max": extreme(max, (sample.clipped_high_share for sample in samples)),
        "cispo_clip_ratio": mean_of_samples(
            [sample.capped_share for sample in samples], samples, by_samples=by_samples
        ),
    }
