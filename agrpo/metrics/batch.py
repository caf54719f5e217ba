"""Batch: what a step was made of (A-282, A-337 to A-347). Tokens are counted as they were forwarded."""

from __future__ import annotations

from agrpo.metrics import StepFacts, mean, ratio
from agrpo.records.progress import DropReason


def measure(facts: StepFacts) -> dict[str, float | None]:
    """`num_tokens` is the running total; the others are of this step."""
    rows = facts.rows
    return {
        "num_tokens": facts.num_tokens,
        "batch/forwarded_tokens_per_step": facts.num_forwarded_tokens,
        "batch/trained_tokens_per_step": facts.num_trained_tokens,
        "batch/samples_per_step": len(facts.samples),
        "batch/groups_per_step": len(facts.plan.tickets),
        "batch/microbatches_per_step": len(rows) // facts.plan.ranks,
        "batch/masked_token_frac": ratio(_num_masked(facts), facts.num_forwarded_tokens),
        "batch/samples_per_row": mean(row.num_samples for row in rows),
        "batch/row_tokens_mean": mean(row.num_tokens for row in rows),
        "batch/row_tokens_max": max((row.num_tokens for row in rows), default=None),
        "batch/row_fill_frac": mean(row.num_tokens / facts.micro_tokens for row in rows),
        "batch/row_imbalance": _imbalance([row.attention_cost for row in rows]),
        "batch/packing_ratio": ratio(sum(sample.num_tokens for sample in facts.samples), facts.num_forwarded_tokens),
        "batch/pad_frac": ratio(_num_padding(facts), facts.num_forwarded_tokens),
        "batch/dropped_oversize_count": _num_oversize(facts),
        "batch/masked_truncated_count": facts.plan.num_truncated,
    }


def _num_masked(facts: StepFacts) -> int:
    """Forwarded tokens that carry no loss."""
    shared = sum(row.num_shared_terms for row in facts.rows)
    return facts.num_forwarded_tokens - (facts.num_trained_tokens - shared)


def _num_padding(facts: StepFacts) -> int:
    """Tokens of rows that hold no sample: what a process forwards where others have one more row than it."""
    return sum(row.num_tokens for row in facts.rows if not row.num_samples)


def _imbalance(costs: list[int]) -> float | None:
    """The costliest row's attention over the mean row's."""
    return max(costs) * len(costs) / sum(costs) if costs else None


def _num_oversize(facts: StepFacts) -> int:
    """Samples left out of trained groups, and all of groups that were dropped for it."""
    oversize = {drop.ticket for drop in facts.plan.drops if drop.reason is DropReason.OVERSIZE}
    dropped = [group for group in facts.consumed if group.ticket in oversize]
    return facts.plan.num_oversize + sum(sum(group.num_sequences) for group in dropped)
