"""Metrics: documented measures of one step, one family per page, each a function of recorded facts.

Names, units and definitions are those of docs/spec/async_grpo.md, sections 19 to 21. Scoring-side measures of step k
cover the groups that plan k consumed, trained and dropped, so every logged number equals SQL over that step's rows. A
measure with nothing to say is absent.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from agrpo.records.progress import Plan, RowFacts, SampleOutcome, StepTimings
from agrpo.records.score import ScoredGroup


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What is known of a finished step."""

    plan: Plan
    consumed: list[ScoredGroup]
    """Groups the plan consumed, trained and dropped."""
    samples: list[SampleOutcome]
    rows: list[RowFacts]
    """Micro-batches as they were forwarded."""
    micro_tokens: int
    """Most tokens a row may hold."""
    loss: float
    grad_norm: float
    num_tokens: int
    """Tokens forwarded since the start of the run, this step's included."""
    timings: StepTimings


def weighted_mean(values: list[float], weights: list[int]) -> float:
    """Mean of per-sample means over their tokens. `weights`: tokens per sample, at least one in all."""
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def measure_step(facts: StepFacts) -> dict[str, float]:
    """All measures of a step, by documented name: what the `measure` of every page of this room says."""
    measures: dict[str, float] = {}
    for page in pkgutil.iter_modules(__path__):
        measures.update(importlib.import_module(f"{__name__}.{page.name}").measure(facts))
    return measures


__all__ = ["StepFacts", "measure_step", "weighted_mean"]
