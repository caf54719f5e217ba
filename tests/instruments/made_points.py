"""Histories made by hand: the same measures in every step, or a function of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agrpo.instruments.diagnosis import Finding, diagnose
from agrpo.instruments.history import StepPoint

Measure = float | Callable[[int], float | None]

GROUPS = 32
SETTINGS: dict[str, Any] = {
    "model": {"path": "m", "dtype": "float32"},
    "engine": {
        "name": "transformers",
        "num_generations": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_completion_length": 64,
        "request_timeout_seconds": 600.0,
        "threads": None,
        "batch_rollouts": 512,
    },
    "rewards": [{"name": "exact_match", "weight": 1.0}],
    "loss": {"name": "clip", "epsilon_high": 0.28, "importance_min": 0.5, "importance_max": 5.0},
    "step": {"groups": GROUPS, "micro_tokens": 16384, "zero_variance": None},
    "async": {"max_staleness": 2, "weight_sync_steps": 1, "max_concurrent_rollouts": 512},
    "optimizer": {"learning_rate": 1e-6, "max_grad_norm": 1.0},
}


def history(
    measures: Mapping[str, Measure], steps: int = 40, attempt: Callable[[int], int] = lambda _: 0
) -> list[StepPoint]:
    """Steps 1, 2, …, each consuming `GROUPS` prompts. A function that answers None logs nothing in that step."""
    return [
        StepPoint(
            step=step,
            attempt=attempt(step),
            finished_at=float(step),
            num_prompts=GROUPS * step,
            metrics={
                name: value
                for name, measure in measures.items()
                if (value := measure(step) if callable(measure) else measure) is not None
            },
        )
        for step in range(1, steps + 1)
    ]


def line(first: float, last: float, steps: int = 40) -> Callable[[int], float]:
    """From one value at step 1 to another at step `steps`."""
    return lambda step: first + (last - first) * (step - 1) / (steps - 1)


def with_settings(**tables: Mapping[str, Any]) -> dict[str, Any]:
    """`SETTINGS` with some values of some tables changed."""
    return {**SETTINGS, **{name: {**SETTINGS[name], **values} for name, values in tables.items()}}


def read(measures: Mapping[str, Measure], settings: Mapping[str, Any] = SETTINGS, steps: int = 40) -> list[Finding]:
    return diagnose(history(measures, steps), settings)


def rules(findings: Sequence[Finding]) -> list[str]:
    return [finding.rule for finding in findings]
