"""Performance: where the wall time of a step went, and what it bought (A-348 to A-356)."""

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
        "perf/weight_sync_pause_s": _where_any(timings.sync_pause_seconds, timings.num_syncs),
        "perf/weight_sync_barrier_s": _where_any(timings.sync_barrier_seconds, timings.num_syncs),
        "perf/fwd_bwd_forwarded_tokens_per_s": ratio(facts.num_forwarded_tokens, compute if trained else 0.0),
        "perf/wall_clock_forwarded_tokens_per_s": ratio(facts.num_forwarded_tokens, timings.step_seconds),
        "perf/wall_clock_trained_tokens_per_s": ratio(facts.num_trained_tokens, timings.step_seconds),
        "perf/fwd_bwd_mfu": _utilisation(facts, compute if trained else 0.0),
        "perf/wall_clock_mfu": _utilisation(facts, timings.step_seconds),
    }


def _where_any(seconds: float, num_syncs: int) -> float | None:
    """None: no server was paused, or no other process waited for, at all."""
    return ratio(seconds, num_syncs) if seconds else None


def _utilisation(facts: StepFacts, seconds: float) -> float | None:
    """What the rows needed of what the training devices could have done in so many seconds."""
    if facts.peak_flops_per_second is None or facts.flops is None:
        return None
    return ratio(facts.flops, facts.peak_flops_per_second * seconds)
