"""Samples: how long those of a step were, and how long they waited (A-332 to A-336), over trained samples."""

from __future__ import annotations

from agrpo.metrics import StepFacts, mean
from agrpo.records.progress import DropReason


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Staleness in weight updates. The time in the queue is from the group's scores to the step's plan."""
    samples = facts.samples
    scored_at = {group.ticket: group.scored_at for group in facts.consumed}
    return {
        "sample/forwarded_tokens_mean": mean(sample.num_tokens for sample in samples),
        "sample/forwarded_tokens_max": max((sample.num_tokens for sample in samples), default=None),
        "sample/trained_tokens_mean": mean(sample.num_trained_tokens for sample in samples),
        "sample/time_in_queue_s": mean(facts.plan.planned_at - scored_at[sample.ticket] for sample in samples),
        "sample/staleness_mean": mean(sample.staleness for sample in samples),
        "sample/staleness_max": max((sample.staleness for sample in samples), default=None),
        "sample/dropped_stale_count": _num_stale(facts),
    }


def _num_stale(facts: StepFacts) -> int:
    """Samples whose group was too late to train."""
    stale = {drop.ticket for drop in facts.plan.drops if drop.reason is DropReason.STALE}
    late = [group for group in facts.consumed if group.ticket in stale]
    return sum(sum(group.num_sequences) for group in late)
