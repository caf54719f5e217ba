"""What a step must know of all its tokens before the first backward: who is kept by entropy, and how large the bonus is.

The threshold: Beyond the 80/20 Rule, arXiv:2506.01939. The coefficient: Skywork-OR1, arXiv:2505.22312.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agrpo.objective.entropy import applied

if TYPE_CHECKING:
    from agrpo.objective import Objective
    from agrpo.records.tokens import StepTotals


def threshold_of(entropies: np.ndarray, share: float) -> float:
    """Entropy at or above which the top share of the tokens lies: the linear quantile at `1 - share` (G-141).

    `entropies`: `[N]`, nats, at least one. A share of 0 keeps the highest alone.
    """
    return float(np.quantile(entropies.astype(np.float64), 1 - share))


def looked_ahead(objective: Objective, totals: StepTotals, entropies: np.ndarray) -> StepTotals:
    """The step's totals with what follows from the entropies `[N]` of all its tokens.

    `totals.entropy_coefficient` is what it was before the step (G-226).
    """
    ranks = objective.masks.top_entropy < 1
    threshold = threshold_of(entropies, objective.masks.top_entropy) if ranks else None
    kept = entropies if threshold is None else entropies[entropies >= threshold]
    entropy = float(kept.mean(dtype=np.float64))
    return replace(
        totals,
        entropy_threshold=threshold,
        num_entropy_tokens=len(kept),
        entropy_mean=entropy,
        entropy_coefficient=applied(objective.entropy, totals.entropy_coefficient, entropy),
    )
