"""Throughput: what a step was made of and how long it took (A-282, A-337 to A-339, A-347, A-348)."""

from __future__ import annotations

from agrpo.metrics import StepFacts
from agrpo.records.progress import DropReason


def measure(facts: StepFacts) -> dict[str, float]:
    """`num_tokens` is the running total; the others are of this step. An empty step has no loss."""
    oversize = {drop.ticket for drop in facts.plan.drops if drop.reason is DropReason.OVERSIZE}
    left_out = [group for group in facts.consumed if group.ticket in oversize]
    forwarded = sum(sample.num_tokens for sample in facts.samples)
    measures = {
        "num_tokens": float(facts.num_tokens),
        "batch/forwarded_tokens_per_step": float(forwarded),
        "batch/trained_tokens_per_step": float(facts.plan.num_trained_tokens),
        "batch/samples_per_step": float(len(facts.samples)),
        "batch/groups_per_step": float(len(facts.plan.tickets)),
        "batch/microbatches_per_step": float(len(facts.plan.rows)),
        "batch/dropped_oversize_count": float(
            facts.plan.num_oversize + sum(length > 0 for group in left_out for length in group.num_prompt_tokens)
        ),
        "perf/step_s": facts.timings.step_seconds,
        "learning_rate": facts.plan.learning_rate,
    }
    if not facts.plan.empty:
        measures |= {"loss": facts.loss, "grad_norm": facts.grad_norm}
    return measures
