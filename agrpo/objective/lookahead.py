"""What a step must know of all its tokens before the first backward: who is kept by entropy, and how large the bonus is.

The threshold: Beyond the 80/20 Rule, arXiv:2506.01939. The coefficient: Skywork-OR1, arXiv:2505.22312.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agrpo.objective.entropy import applied

if TYPE_CHECKING:
    from agrpo.config.objective import EntropySection, MasksSection
    from agrpo.records.tokens import StepTotals


def threshold_of(entropies: np.ndarray, share: float) -> float:
    """Entropy at or above which the top share of the tokens lies: the linear quantile at `1 - share` (G-141).

    `entropies`: `[N]`, nats, at least one. A share of 0 keeps the highest alone.
    """
    return float(np.quantile(entropies.astype(np.float64), 1 - share))


def looked_ahead(masks: MasksSection, section: EntropySection, totals: StepTotals, entropies: np.ndarray) -> StepTotals:
    """The totals with threshold, kept tokens, their mean entropy, and the coefficient that is applied.

    `entropies`: `[N]` of the whole step, nats. `totals.entropy_coefficient` is what it was before the step (G-226).
    """
    threshold = threshold_of(entropies, masks.top_entropy) if masks.top_entropy < 1 else None
    kept = entropies if threshold is None else entropies[entropies >= threshold]
    entropy = float(kept.mean(dtype=np.float64))
    return replace(
        totals,
        entropy_threshold=threshold,
        num_entropy_tokens=len(kept),
        entropy_mean=entropy,
        entropy_coefficient=applied(section, totals.entropy_coefficient, entropy),
    )
