"""Staleness: weight updates between sampling and training (A-335, A-336)."""

from __future__ import annotations

from statistics import fmean

from agrpo.metrics import StepFacts
from agrpo.records.progress import DropReason


def measure(facts: StepFacts) -> dict[str, float]:
    """Over trained samples; the count is of samples whose group was too late to train."""
    stale = {drop.ticket for drop in facts.plan.drops if drop.reason is DropReason.STALE}
    late = [group for group in facts.consumed if group.ticket in stale]
    measures = {"sample/dropped_stale_count": float(sum(length > 0 for g in late for length in g.num_prompt_tokens))}
    if facts.samples:
        ages = [sample.staleness for sample in facts.samples]
        measures |= {"sample/staleness_mean": fmean(ages), "sample/staleness_max": float(max(ages))}
    return measures
