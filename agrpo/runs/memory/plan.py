"""The plan: parts of all processes by the place they are in, held against what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agrpo.config import RunConfig
from agrpo.engines.serving_vllm.devices import learner_gpus, serve_here
from agrpo.engines.transformers import Transformers
from agrpo.engines.vllm import Vllm
from agrpo.runs.memory.machine import Machine, Memory
from agrpo.runs.memory.parts import (
    BYTES,
    IMPORTS,
    MIB,
    REFERENCE,
    Part,
    engine_parts,
    fixed,
    passing,
    training_parts,
)
from agrpo.runs.memory.reward_models import gpu_index, judge_imports, judge_parts, reward_models, unknown_models
from agrpo.runs.memory.rows import RowSize, row_size
from agrpo.runs.memory.servers import server_parts, shared_gpu_parts
from agrpo.runs.memory.shape import ModelShape, read_shape

TIGHT = 0.85
"""Share of what is free from which on a plan is tight: an estimate may be off by so much."""
HERE = "this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Memory of one kind: the machine's, or that of a GPU."""

    name: str
    memory: Memory
    parts: tuple[Part, ...]

    @property
    def likely(self) -> int:
        """Bytes that are taken when everything is at its fullest."""
        return sum(part.likely for part in self.parts)

    @property
    def least(self) -> int:
        """Bytes that are taken at any rate."""
        return sum(part.least for part in self.parts)

    @property
    def fits(self) -> bool:
        """False: not even the least of it."""
        return self.least <= self.memory.total

    @property
    def tight(self) -> bool:
        return self.likely > TIGHT * self.memory.free


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a run takes and what there is."""

    places: tuple[Place, ...]
    unknown: str | None = None
    """What nothing could be said of, and why."""
    doubt: str | None = None
    """Why the learner may find other GPUs than are planned for: such a plan refuses nothing."""
    row: RowSize

    def document(self) -> dict[str, Any]:
        """Plain values, for `run.json`: bytes."""
        return {
            "unknown": self.unknown,
            "doubt": self.doubt,
            "places": [
                {
                    "name": place.name,
                    "total": place.memory.total,
                    "free": place.memory.free,
                    "parts": [
                        {"process": part.process, "what": part.what, "likely": part.likely, "least": part.least}
                        for part in place.parts
                    ],
                }
                for place in self.places
            ],
        }


def plan_memory(config: RunConfig, machine: Machine) -> MemoryPlan:
    """Of a run that begins on this machine with all of its processes."""
    shape, on_gpu = read_shape(config.model), bool(machine.gpus)
    ranks = _ranks(config, machine)
    row = row_size(config, ranks=ranks)
    training = training_parts(config, shape, row, ranks=ranks, on_gpu=on_gpu) if shape else []
    training_here = [] if on_gpu else training
    here = [*_imports(config, ranks, on_gpu=on_gpu), *(part for part in training_here for _ in range(ranks))]
    here += _whole_models(config, shape, training_here, ranks, on_gpu=on_gpu)
    here += [*_generators(config, shape, row, on_gpu=on_gpu), *judge_parts(config, row, None)]
    places = [Place(name=HERE, memory=machine.memory, parts=tuple(here))]
    if on_gpu:
        parts = (_context(), *training, *_servers_beside(config, shape, machine))
        parts += tuple(part for index in range(ranks) for part in judge_parts(config, row, index))
        places += [
            Place(name=_gpu_name(ranks), memory=machine.gpus[0], parts=parts),
            *_gpus_of_judges(config, row, ranks, machine),
        ]
    unknown = [*([] if shape else [config.model.path]), *unknown_models(config)]
    return MemoryPlan(
        places=tuple(places),
        unknown=f"the weights of {', '.join(unknown)}, which are not all here yet or of another kind"
        if unknown
        else None,
        doubt=machine.gpus_doubt,
        row=row,
    )


def _ranks(config: RunConfig, machine: Machine) -> int:
    """Processes of the learner. Where nothing is said, one for each GPU that no server takes."""
    asked, engine, gpus = config.workers.learner_processes, config.engine, len(machine.gpus)
    if isinstance(engine, Vllm) and engine.serve:
        return learner_gpus(asked, gpus, engine.replicas, engine.arguments)
    if asked is None and isinstance(engine, Vllm) and serve_here(engine.urls()):
        return 1
    return asked or max(1, gpus)


def _gpu_name(ranks: int) -> str:
    return "the learner's GPU" if ranks == 1 else f"each of the learner's {ranks} GPUs"


def _gpus_of_judges(config: RunConfig, row: RowSize, ranks: int, machine: Machine) -> list[Place]:
    """Those behind the learner's on which a reward model is."""
    asked = {index for model in reward_models(config) if (index := gpu_index(model)) is not None}
    return [
        Place(name=f"the reward model's GPU (cuda:{index})", memory=machine.gpus[index], parts=tuple(parts))
        for index in sorted(asked)
        if ranks <= index < len(machine.gpus) and (parts := judge_parts(config, row, index))
    ]


def _context() -> Part:
    return fixed("learner", "the driver and torch", IMPORTS.gpu_context)


def _imports(config: RunConfig, ranks: int, *, on_gpu: bool) -> list[Part]:
    """What all processes hold before any has a model."""
    scorers = config.workers.scorers
    judges = scorers * (len(config.rewards) - len(reward_models(config)))
    return [
        fixed("learner", "imports", ranks * (IMPORTS.learner + (IMPORTS.driver if on_gpu else 0))),
        fixed("scorer", "imports, and the children that judge", scorers * IMPORTS.scorer + judges * IMPORTS.judge),
        fixed("recorder", "imports and database", IMPORTS.recorder),
        fixed("flow", "imports, and a server of Prefect", IMPORTS.flow + IMPORTS.prefect),
        *judge_imports(config),
    ]


def _whole_models(
    config: RunConfig, shape: ModelShape | None, training: Sequence[Part], ranks: int, *, on_gpu: bool
) -> list[Part]:
    """What the learner takes of the machine for a moment: every process reads the whole model, and rank 0 exports it.

    `training`: of one process, where that lies in the machine's memory too. Its parts are not there while a model is read, but
    for the policy's weights when a reference is; while one is exported weights and moments are. What exceeds them is more.
    """
    if shape is None or not (on_gpu or ranks > 1):
        return []
    whole = BYTES[config.model.dtype] * shape.num_weights
    sizes = {part.what: ranks * part.likely for part in training}
    kept = sum(sizes.get(what, 0) for what in ("weights", "AdamW's moments", REFERENCE))
    before = sizes.get("weights", 0) if REFERENCE in sizes else 0
    most = max(before + ranks * whole, kept + whole) - sum(sizes.values())
    who = "it is read" if ranks == 1 else f"{ranks} processes read it each, or one exports it"
    return [passing("learner", f"the whole model, while {who}", most)] if most > 0 else []


def _generators(config: RunConfig, shape: ModelShape | None, row: RowSize, *, on_gpu: bool) -> list[Part]:
    engine, count = config.engine, config.workers.generators
    if isinstance(engine, Transformers):
        each = engine_parts(config, shape, row) if shape else []
        imports = IMPORTS.generator + (IMPORTS.driver if on_gpu else 0)
        return [fixed("generator", "imports", count * imports), *(part for part in each for _ in range(count))]
    parts = [fixed("generator", "imports", count * IMPORTS.scorer)]
    return [*parts, *(server_parts(engine, config, shape) if isinstance(engine, Vllm) and engine.serve else [])]


def _servers_beside(config: RunConfig, shape: ModelShape | None, machine: Machine) -> list[Part]:
    engine = config.engine
    if not isinstance(engine, Vllm) or not engine.serve:
        return []
    return shared_gpu_parts(engine, config, shape, machine.gpus)


__all__ = ["MIB", "MemoryPlan", "Place", "plan_memory"]
