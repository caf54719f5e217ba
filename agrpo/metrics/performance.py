"""Performance: where the wall time of a step went, and what it bought (A-348 to A-355)."""

from __future__ import annotations

from agrpo.metrics import StepFacts, ratio


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Seconds since the step before was done; a sync is in the time of the step after it.

    A step that trained nothing has no forward, backward or optimizer time.
    """
    timings, trained = facts.timings, not facts.plan.empty
    compute = timings.forward_seconds + timings.backward_seconds
    return {
        "perf/step_s": timings.step_seconds,
        "perf/fwd_bwd_s": compute if trained else None,
        "perf/fwd_s": timings.forward_seconds if trained else None,
        "perf/optimizer_s": timings.optimizer_seconds if trained else None,
        "perf/rollout_wait_s": timings.wait_seconds,
        "perf/weight_sync_s": ratio(timings.sync_seconds, timings.num_syncs),
        "perf/weight_sync_transfer_s": ratio(timings.sync_transfer_seconds, timings.num_syncs),
        "perf/fwd_bwd_forwarded_tokens_per_s": ratio(facts.num_forwarded_tokens, compute if trained else 0.0),
        "perf/wall_clock_forwarded_tokens_per_s": ratio(facts.num_forwarded_tokens, timings.step_seconds),
        "perf/wall_clock_trained_tokens_per_s": ratio(facts.num_trained_tokens, timings.step_seconds),
    }
