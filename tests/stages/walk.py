"""A whole run in one process: its stages as threads over one folder."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Done
from agrpo.stages import StageContext, kind_of, new_incarnation

DEADLINE_SECONDS = 120
LOCKSTEP: dict[str, Any] = {"asynchronous": {"max_staleness": 0}, "engine": {"reproducible": True}}
"""Tables of a run that repeats bit for bit."""


def settings(model: Path, prompts: Path, runs: Path, reward: str = "distinct_tokens", **tables: Any) -> dict[str, Any]:
    """A small run whose reward every rollout group can differ in. `asynchronous` stands for `async`."""
    tree: dict[str, Any] = {
        "run": {"dir": str(runs), "seed": 1},
        "model": {"path": str(model)},
        "engine": {"name": "transformers", "num_generations": 4, "max_completion_length": 6, "threads": 1},
        "prompts": {"name": "files", "path": str(prompts)},
        "rewards": [{"name": f"tests.stages.judges:{reward}"}],
        "step": {"groups": 2},
        "optimizer": {"learning_rate": 1e-3},
        "checkpoint": {"every_seconds": 0},
        "stop": {"max_steps": 4, "stall_seconds": 60},
    }
    for name, values in tables.items():
        table = "async" if name == "asynchronous" else name
        tree[table] = values if isinstance(values, list) else {**tree.get(table, {}), **values}
    return tree


class Walk:
    """Starts stages as threads; the first error of any stops all and is raised by `join`."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, *stages: str) -> Walk:
        for stage in stages:
            thread = threading.Thread(target=self._run, args=(stage,), name=stage)
            self.threads.append(thread)
            thread.start()
        return self

    def _run(self, stage: str) -> None:
        context = StageContext(run_url=self.folder.url, stage=stage, incarnation=new_incarnation(stage), stop=self.stop)
        try:
            importlib.import_module(f"agrpo.stages.{kind_of(stage)}").run(context)
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive(), f"{thread.name} did not end within {DEADLINE_SECONDS} s"
        if self.errors:
            raise self.errors[0]

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so, or a stage has failed."""
        waited = threading.Event()
        for _ in range(DEADLINE_SECONDS * 50):
            if reached() or self.stop.is_set():
                return
            waited.wait(0.02)
        raise AssertionError("what the test waits for did not come about")


def walk(folder: RunFolder) -> None:
    """From the first step to the last."""
    Walk(folder).start("generator", "scorer", "learner").join()


def dones(folder: RunFolder, attempt: int = 0) -> list[Done]:
    """The done records of one attempt, in order."""
    found = [folder.done(StepKey(attempt, step)) for step in folder.done_steps(attempt)]
    return [done for done in found if done is not None]
