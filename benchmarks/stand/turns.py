"""The turns of `against_trl`: TRL's trainer, and runs of agrpo with each engine, each with the machine for itself."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agrpo.config import RunConfig, load_settings
from agrpo.engines import Engine, Needs
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.process import StageProcess, Supervisor
from stand.floor import Floor
from stand.real_steps import WARM_STEPS, RealSteps, measure
from stand.tables import Bar, bar
from stand.top_logprobs import Shape, seconds_by_count

HERE = Path(__file__).parents[1]
SHAPE = Shape(groups=4, num_generations=8, prompt_tokens=45, completion_tokens=64)
THREADS = 2
LEARNING_RATE = 1e-6
MAX_STALENESS = 2
"""Room for the generator to work beside the learner in every step."""
PEER, IN_PROCESS, SERVED = "TRL GRPOTrainer", "agrpo, transformers", "agrpo, vllm"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured, and with what."""

    model: Path
    prompts: Path
    place: Path
    dtype: str
    steps: int
    rounds: int
    trl_python: Path
    vllm: str | None
    """Folder of the environment that has vLLM. None: it is left out."""


@dataclass
class Side:
    """What one way took in every round."""

    trained: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    ours: list[RealSteps] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Trained tokens a second."""
        return self.trained / self.seconds

    def add(
        self, *, trained: float, seconds: float, cpu_seconds: float, steps: int, parts: Mapping[str, float]
    ) -> None:
        self.trained += trained
        self.seconds += seconds
        self.cpu_seconds += cpu_seconds
        self.steps += steps
        for name, value in parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + value


@dataclass(frozen=True)
class Measured:
    """Everything that was measured."""

    sides: dict[str, Side]
    """By way."""
    floors: list[Floor]
    """One a round."""
    top: dict[str, dict[int, list[float]]]
    """Seconds a token of agrpo's engines, by how many log-probs they were asked for."""


def measure_in_turns(plan: Plan) -> Measured:
    """Every way its turns, one after the other, round by round."""
    measured = Measured({PEER: Side(), IN_PROCESS: Side(), **({SERVED: Side()} if plan.vllm else {})}, [], {})
    ours = (WARM_STEPS + plan.steps) * (len(measured.sides) - 1)
    total = plan.rounds * (2 + plan.steps + ours)
    with bar("against TRL", total) as progress:
        for number in range(plan.rounds):
            last = number == plan.rounds - 1
            for line in _told(plan, "stand.floor", sys.executable, {}):
                measured.floors.append(Floor(**line))
                progress.advance("floor")
            _peer(plan, measured.sides[PEER], progress)
            for name in [name for name in measured.sides if name != PEER]:
                _ours(plan, name, measured, progress, last=last)
    return measured


def _told(plan: Plan, module: str, python: str | Path, more: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of JSON that a module of `stand` prints. It has the machine for itself. Raises `SystemExit`."""
    command = [str(python), "-m", module, json.dumps({**_shared(plan), **more})]
    # Its threads may spin while they wait, as they do by default: nothing else wants the cores.
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = {**inherited, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
    log = plan.place / f"{module}.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        yield from (json.loads(line) for line in process.stdout if line.startswith('{"'))
    if process.returncode != 0:
        raise SystemExit(f"{module} ended with {process.returncode}:\n{log.read_text()[-3000:]}")


def _shared(plan: Plan) -> dict[str, Any]:
    """What both modules have to know."""
    return {
        "model": str(plan.model),
        "prompts": str(plan.prompts),
        "dtype": plan.dtype,
        "threads": THREADS,
        "groups": SHAPE.groups,
        "num_generations": SHAPE.num_generations,
        "prompt_tokens": SHAPE.prompt_tokens,
        "completion_tokens": SHAPE.completion_tokens,
        "learning_rate": LEARNING_RATE,
    }


def _peer(plan: Plan, side: Side, progress: Bar) -> None:
    """One turn of TRL; its first step, which also pays for what is built once, does not count."""
    names = {"_generate_single_turn": "generate", "_compute_loss": "forward", "backward": "backward"}
    for step in _told(plan, "stand.trl_steps", plan.trl_python, {"steps": 1 + plan.steps}):
        progress.advance(PEER)
        if step["step"] == 1:
            continue
        parts = {name: step["parts"].get(method, 0.0) for method, name in names.items()}
        side.add(
            trained=step["trained"], seconds=step["seconds"], cpu_seconds=step["cpu_seconds"], steps=1, parts=parts
        )


def _ours(plan: Plan, name: str, measured: Measured, progress: Bar, *, last: bool) -> None:
    """One turn of agrpo; in the last one, what its engine asks for log-probs."""
    place = plan.place / "run"
    served = name == SERVED
    at_work = _asks(name, measured) if served and last else None
    seen = 0

    def look(step: int) -> None:
        nonlocal seen
        while seen < step:
            seen += 1
            progress.advance(name)

    found = measure(_settings(plan, served=served), place, plan.steps, look=look, at_work=at_work)
    if last and not served:
        measured.top[name] = asyncio.run(_top_in_process(place))
    side = measured.sides[name]
    side.ours.append(found)
    parts = {"generate": found.busy["generator"], **found.parts}
    side.add(
        trained=found.trained, seconds=found.seconds, cpu_seconds=found.cpu_seconds, steps=found.steps, parts=parts
    )
    shutil.rmtree(place)


def _settings(plan: Plan, *, served: bool) -> dict[str, Any]:
    engine: dict[str, Any] = {"name": "transformers"}
    if served:
        longest = SHAPE.prompt_tokens + SHAPE.completion_tokens
        engine = {"name": "vllm", "serve": True, "environment": plan.vllm, "max_model_len": 2 * longest}
    return {
        "run": {"name": "against-trl", "seed": 1},
        "model": {"path": str(plan.model), "dtype": plan.dtype},
        "prompts": {"name": "files", "path": str(plan.prompts)},
        "engine": {
            **engine,
            "num_generations": SHAPE.num_generations,
            "max_completion_length": SHAPE.completion_tokens,
        },
        "rewards": [{"name": "stand.words:distinct_words"}],
        "loss": {"name": "clip", "epsilon": 0.2, "importance_min": 0.0, "importance_max": float("inf")},
        "aggregation": {"name": "token_mean"},
        "step": {"groups": SHAPE.groups, "zero_variance": "keep"},
        "async": {"max_staleness": MAX_STALENESS},
        "workers": {"learner_threads": THREADS},
        "optimizer": {"learning_rate": LEARNING_RATE},
        "checkpoint": {"every_seconds": 1e6},
    }


async def _top_in_process(place: Path) -> dict[int, list[float]]:
    folder = RunFolder.open(str(place))
    config = RunConfig.build(load_settings(folder.document()))
    return await _top(config.engine(config.model, Needs()), folder)


def _asks(name: str, measured: Measured) -> Callable[[RunFolder, Supervisor, dict[str, StageProcess]], None]:
    """Asks the run's own server, once the other stages have ended."""

    def ask(folder: RunFolder, _: Supervisor, __: dict[str, StageProcess]) -> None:
        config = RunConfig.build(load_settings(folder.document()))
        needs = Needs(servers=folder.server_urls, sampling=config.sampling, max_staleness=MAX_STALENESS)

        async def asked() -> dict[int, list[float]]:
            return await _top(config.engine(config.model, needs), folder)

        measured.top[name] = asyncio.run(asked())

    return ask


async def _top(engine: Engine, folder: RunFolder) -> dict[int, list[float]]:
    newest = folder.version(0, max(folder.versions(0)))
    assert newest is not None
    try:
        await engine.load(folder.local / newest.folder, newest.version)
        return await seconds_by_count(engine, SHAPE, 2)
    finally:
        await engine.close()
