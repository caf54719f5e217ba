"""The plan: parts of all processes by the place they are in, held against what is there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agrpo.config import RunConfig
from agrpo.engines.serving_vllm.command import CPU_KV_CACHE_BYTES
from agrpo.engines.serving_vllm.devices import learner_gpus, serve_here
from agrpo.engines.serving_vllm.environment import find_installation
from agrpo.engines.transformers import Transformers
from agrpo.engines.vllm import Vllm
from agrpo.errors import MissingPackage
from agrpo.runs.memory.machine import Machine, Memory
from agrpo.runs.memory.parts import BYTES, IMPORTS, MIB, Part, engine_parts, exact, fixed, training_parts
from agrpo.runs.memory.rows import RowSize, row_size
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
    row: RowSize

    def document(self) -> dict[str, Any]:
        """Plain values, for `run.json`: bytes."""
        return {
            "unknown": self.unknown,
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
    gpus = [Place(name=_gpu_name(ranks), memory=machine.gpus[0], parts=(_context(), *training))] if on_gpu else []
    here = [*_learners(config, shape, ranks, on_gpu=on_gpu), *_others(config)]
    here += [] if on_gpu else [part for part in training for _ in range(ranks)]
    here += _generators(config, shape, row, on_gpu=on_gpu)
    return MemoryPlan(
        places=(Place(name=HERE, memory=machine.memory, parts=tuple(here)), *gpus),
        unknown=None if shape else f"the weights of {config.model.path}, which is not here yet or of another kind",
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


def _context() -> Part:
    return fixed("learner", "the driver and torch", IMPORTS.gpu_context)


def _learners(config: RunConfig, shape: ModelShape | None, ranks: int, *, on_gpu: bool) -> list[Part]:
    """What the learner's processes hold in the machine's memory, wherever they train."""
    parts = [fixed("learner", "imports", ranks * (IMPORTS.learner + (IMPORTS.driver if on_gpu else 0)))]
    if on_gpu and shape is not None:
        size = BYTES[config.model.served_dtype] * shape.num_weights
        parts.append(Part(process="learner", what="weights on their way out", likely=size, least=0))
    return parts


def _others(config: RunConfig) -> list[Part]:
    scorers, judges = config.workers.scorers, config.workers.scorers * len(config.rewards)
    return [
        fixed("scorer", "imports, and the children that judge", scorers * IMPORTS.scorer + judges * IMPORTS.judge),
        fixed("recorder", "imports and database", IMPORTS.recorder),
        fixed("flow", "imports, and a server of Prefect", IMPORTS.flow + IMPORTS.prefect),
    ]


def _generators(config: RunConfig, shape: ModelShape | None, row: RowSize, *, on_gpu: bool) -> list[Part]:
    engine, count = config.engine, config.workers.generators
    if isinstance(engine, Transformers):
        each = engine_parts(config, shape, row) if shape else []
        imports = IMPORTS.generator + (IMPORTS.driver if on_gpu else 0)
        return [fixed("generator", "imports", count * imports), *(part for part in each for _ in range(count))]
    parts = [fixed("generator", "imports", count * IMPORTS.scorer)]
    if isinstance(engine, Vllm) and engine.serve and _on_cpu(engine):
        parts += [part for _ in range(engine.replicas) for part in _server(config, engine, shape)]
    return parts


def _on_cpu(engine: Vllm) -> bool:
    try:
        return find_installation(engine.environment).on_cpu
    except MissingPackage:
        return False  # said by the checks of the servers


def _server(config: RunConfig, engine: Vllm, shape: ModelShape | None) -> list[Part]:
    """A server of the run's own whose memory is the machine's. On a GPU vLLM refuses by itself what does not fit."""
    weights = BYTES[config.model.served_dtype] * shape.num_weights if shape else 0
    cache = _said(engine.arguments, "--kv-cache-memory-bytes") or CPU_KV_CACHE_BYTES
    return [
        fixed("server", "imports", IMPORTS.server),
        exact("server", "weights", weights),
        Part(process="server", what="keys and values", likely=cache, least=0, lower=(_CACHE,)),
    ]


_CACHE = 'engine.arguments = ["--kv-cache-memory-bytes=…"]'


def _said(arguments: Sequence[str], name: str) -> int | None:
    for argument, following in itertools.pairwise([*arguments, ""]):
        said, _, inline = argument.partition("=")
        value = inline or following
        if said.replace("_", "-") == name and value.isdecimal():
            return int(value)
    return None


__all__ = ["MIB", "MemoryPlan", "Place", "plan_memory"]
