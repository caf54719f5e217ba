"""Objectives whose steps must not depend on how they are split: every loss, every aggregation, and what is laid around them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from agrpo.aggregations import aggregations
from agrpo.config.objective import CorrectionSection, EntropySection, MasksSection
from agrpo.losses import Loss, losses
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.records.tokens import StepTotals

SEQUENCES = Clip(level="sequence", epsilon=0.05, importance_min=0.0, importance_max=math.inf)


def _made(loss: Loss, aggregation: str = "token_mean", **around: object) -> Objective:
    return Objective(loss=loss, aggregation=aggregations.build(aggregation, {}), **around)  # pyright: ignore[reportArgumentType]


OBJECTIVES: dict[str, Objective] = {
    **{name: _made(losses.build(name, {})) for name in losses.names()},
    **{f"clip, {name}": _made(Clip(), name) for name in aggregations.names() if name != "token_mean"},
    "gspo": _made(SEQUENCES, "sequence_mean"),
    "luspo": _made(SEQUENCES, "sequence_sum"),
    "masked by samples": _made(Clip(), masks=MasksSection(off_policy_threshold=0.01)),
    "corrected by samples": _made(Clip(), correction=CorrectionSection(mode="sequence_truncate", maximum=1.5)),
    "corrected by tokens": _made(
        losses.build("vespo", {}), correction=CorrectionSection(mode="token_mask", maximum=1.5)
    ),
    "masked by entropy": _made(
        losses.build("gmpo", {}),
        "sequence_mean",
        masks=MasksSection(top_entropy=0.3),
        entropy=EntropySection(coefficient=0.1),
    ),
    "with a bonus": _made(Clip(), "constant", entropy=EntropySection(coefficient=0.1)),
    "with an adaptive bonus": _made(
        Clip(),
        entropy=EntropySection(coefficient=0.1, adaptive=True, target=100.0),
        masks=MasksSection(top_entropy=0.5),
    ),
}
"""By name."""

MASKS = {
    **dict.fromkeys(["clip", "score_centering"], "masked"),
    "corrected by samples": "correction",
    "corrected by tokens": "correction",
    "masked by samples": "off_policy_masked",
    "masked by entropy": "entropy_masked",
    "with an adaptive bonus": "entropy_masked",
}
"""By name, the measure that must not be the same for all tokens, lest the test see nothing."""


def expect_some_masked(name: str, measures: Mapping[str, list[np.ndarray]]) -> None:
    """`measures`: of tokens, in any pieces."""
    if name in MASKS:
        values = np.concatenate(measures[MASKS[name]])
        assert values.min() < values.max(), f"{MASKS[name]} is {values.min()} everywhere"


def totals_of(objective: Objective, num_tokens: int, num_samples: int) -> StepTotals:
    """As the learner begins a step with."""
    return StepTotals(
        num_tokens=num_tokens,
        num_samples=num_samples,
        max_completion_length=16,
        num_entropy_tokens=num_tokens,
        entropy_coefficient=objective.entropy.coefficient,
    )
