"""The run file of a prepared task: a commented TOML file to read, change and pass to `agrpo train`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agrpo.quickstart.question import Task

ABOUT_TABLES = {
    "model": "The warm-started policy.",
    "prompts": "Questions the warm start has not seen.",
    "engine": "Samples the rollouts, in a process of its own.",
    "rewards": "The dataset's own scorer.",
    "loss": "Clipped importance ratios, the upper side wider (DAPO).",
    "step": "Groups whose rollouts earn the same reward teach nothing and are left out.",
    "async": "Rollouts may be trained up to this many weight updates after they were sampled; 0 is lockstep.",
}


def run_settings(task: Task, *, model: Path, prompts: Path, seed: int) -> dict[str, Any]:
    """The settings tree of a run of `task`, for `agrpo.config.resolve`."""
    return {
        "run": {"name": f"quickstart-{task.name}", "seed": seed},
        "model": {"path": str(model)},
        "prompts": {"name": "files", "path": str(prompts)},
        "engine": {
            "name": "transformers",
            "num_generations": 8,
            "temperature": 1.0,
            "max_completion_length": task.max_completion_length,
        },
        "rewards": [{"name": "reasoning_gym"}],
        "loss": {"name": "clip", "epsilon": 0.2, "epsilon_high": 0.28},
        "step": {"groups": 32, "zero_variance": "drop"},
        "async": {"max_staleness": 2},
        "optimizer": {
            "learning_rate": task.learning_rate,
            "betas": list(task.betas),
            "scheduler": "constant_with_warmup",
            "warmup_steps": task.warmup_steps,
        },
        "stop": {"max_steps": task.max_steps},
    }


def run_file(settings: Mapping[str, Any], about: str) -> str:
    """`settings` as TOML, with `about` and a sentence on each table as comments."""
    lines = [f"# {about}", "# Change what you like, then: agrpo train run.toml"]
    for table, values in settings.items():
        lines += ["", *(f"# {sentence}" for sentence in [ABOUT_TABLES.get(table)] if sentence)]
        for header, entry in _entries(table, values):
            lines += [header, *(f"{key} = {_toml(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def _entries(table: str, values: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(values, list):
        yield from ((f"[[{table}]]", entry) for entry in values)
    else:
        yield f"[{table}]", values


def _toml(value: Any) -> str:
    """A string, number, boolean or list of them as TOML writes it, which is as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
