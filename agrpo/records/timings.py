"""Timings: where the wall time of a step went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimings:
    """Where the wall time went since the step before was done. The parts add up to `step_seconds`."""

    step_seconds: float = 0.0
    wait_seconds: float = 0.0
    """For scored groups."""
    read_seconds: float = 0.0
    """Reading scores and groups."""
    plan_seconds: float = 0.0
    """Advantages, rows, and writing the plan."""
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    digest_seconds: float = 0.0
    record_seconds: float = 0.0
    """Writing what the step before had done."""
    sync_seconds: float = 0.0
    """Publishing weights: the transfer, and their probe and record."""
    sync_transfer_seconds: float = 0.0
    """Writing and sending the weights; a part of `sync_seconds`."""
    sync_pause_seconds: float = 0.0
    """Pausing the servers that weights are sent into, and resuming them; a part of it too."""
    sync_barrier_seconds: float = 0.0
    """Waiting for the learner's other processes; likewise."""
    checkpoint_seconds: float = 0.0
    other_seconds: float = 0.0
    num_syncs: int = 0
    """Versions published."""
