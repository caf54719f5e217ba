"""GPUs of a machine that a run would leave to its learner alone, since its engine samples on the CPU."""

from __future__ import annotations

from agrpo.config import RunConfig
from agrpo.engines.transformers import Transformers
from agrpo.runs.memory import Machine


def idle_gpus(config: RunConfig, machine: Machine) -> list[str]:
    """A sentence where the engine would sample faster by a GPU that is there, and takes none."""
    if not machine.gpus or not isinstance(config.engine, Transformers):
        return []
    return [
        'engine.name: "transformers" samples on the CPU, which is slow beside a learner on a GPU; set engine.name = "vllm" and '
        "engine.serve = true where vLLM is installed (docs/vllm.md)"
    ]
