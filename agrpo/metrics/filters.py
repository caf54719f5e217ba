"""Filters: groups that the run's filters left out of a step, by filter."""

from __future__ import annotations

from collections import Counter

from agrpo.metrics import StepFacts


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Groups, under the name of the first filter that left them out; one that left out none says nothing."""
    counts = Counter(drop.left_out_by for drop in facts.plan.drops if drop.left_out_by is not None)
    return {f"filters/{name}/left_out_count": count for name, count in counts.items()}
