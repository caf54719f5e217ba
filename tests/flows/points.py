"""Finished steps made by hand, and the document of the run they are of."""

from __future__ import annotations

from typing import Any

from agrpo.instruments.history import StepPoint


def document(**stop: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "run": {"name": "sums"},
        "model": {"path": "/models/thinking-seed1/model"},
        "prompts": {"name": "files", "path": "/models/thinking-seed1/prompts.parquet"},
        "stop": {"max_steps": 60, "epochs": None, **stop},
    }
    return {
        "name": "Sums of-three_1",
        "settings": {"tree": tree, "origins": {}},
        "prompts_per_epoch": 100,
        "threads": 1,
    }


def point(step: int, **metrics: float) -> StepPoint:
    """Steps end 20 s apart. `__` in a name stands for `/`."""
    measures = {name.replace("__", "/"): value for name, value in metrics.items()}
    return StepPoint(step=step, attempt=0, finished_at=20.0 * step, num_prompts=32 * step, metrics=measures)
