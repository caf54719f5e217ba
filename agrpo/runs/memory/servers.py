"""What the vLLM servers of a run take of its machine, and of the learner's GPU where that is the only one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from agrpo.config import RunConfig
from agrpo.engines.serving_vllm.command import CPU_KV_CACHE_BYTES
from agrpo.engines.serving_vllm.devices import PLACING, gpus_each, learner_gpus, value_of
from agrpo.engines.serving_vllm.environment import find_installation
from agrpo.engines.vllm import Vllm
from agrpo.errors import MissingPackage
from agrpo.runs.memory.machine import Memory
from agrpo.runs.memory.parts import BYTES, IMPORTS, Part, exact, fixed, passing
from agrpo.runs.memory.shape import ModelShape

CACHE, SHARE, SPACE = "--kv-cache-memory-bytes", "--gpu-memory-utilization", "VLLM_CPU_KVCACHE_SPACE"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)")
_FACTORS = {
    "": 1,
    **{unit: 10 ** (3 * power) for power, unit in enumerate("kmgt", 1)},
    **{unit: 2 ** (10 * power) for power, unit in enumerate("KMGT", 1)},
}


def server_parts(engine: Vllm, config: RunConfig, shape: ModelShape | None) -> list[Part]:
    """Of all servers together, in the machine's memory."""
    if not _on_cpu(engine):
        each = IMPORTS.server + gpus_each(engine.arguments) * IMPORTS.driver
        return [fixed("server", "imports", engine.replicas * each)]
    cache, lower = cpu_cache(engine.arguments, os.environ)
    parts = [
        fixed("server", "imports", IMPORTS.server),
        exact("server", "weights", _weights(config, shape)),
        passing("server", "keys and values", cache, lower),
    ]
    return [part for _ in range(engine.replicas) for part in parts]


def shared_gpu_parts(engine: Vllm, config: RunConfig, shape: ModelShape | None, gpus: Sequence[Memory]) -> list[Part]:
    """Of the learner's GPU, where a server is on it for want of another one."""
    alone = len(gpus) == 1 and engine.replicas * gpus_each(engine.arguments) == 1
    if not alone or value_of(engine.arguments, PLACING) is not None or _on_cpu(engine):
        return []
    cache = size_in_bytes(value_of(engine.arguments, CACHE))
    if cache is not None:  # which vLLM takes in place of a share
        weights = exact("server", "weights", _weights(config, shape))
        return [
            fixed("server", "the driver and torch", IMPORTS.gpu_context),
            weights,
            exact("server", CACHE, cache, _less(CACHE)),
        ]
    share = _share(value_of(engine.arguments, SHARE))
    return [exact("server", f"{SHARE}={share:g}", share * gpus[0].total, _less(SHARE))] if share is not None else []


def gpus_of_servers(config: RunConfig, num_gpus: int) -> range:
    """Indices of the GPUs that the run's servers take: right behind the learner's. None where arguments place a server."""
    engine = config.engine
    if not isinstance(engine, Vllm) or not engine.serve or value_of(engine.arguments, PLACING) is not None:
        return range(0)
    first = learner_gpus(config.workers.learner_processes, num_gpus, engine.replicas, engine.arguments)
    last = first + engine.replicas * gpus_each(engine.arguments)
    return range(0) if last > num_gpus or _on_cpu(engine) else range(first, last)


def cpu_cache(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Bytes of a server's keys and values on a CPU, and what makes them fewer. The variable wins, as it does in vLLM."""
    space = environment.get(SPACE, "")
    if space.isdecimal():
        return int(space) * 2**30, f"a smaller {SPACE} in the environment"
    return size_in_bytes(value_of(arguments, CACHE)) or CPU_KV_CACHE_BYTES, _less(CACHE)


def size_in_bytes(text: str | None) -> int | None:
    """As vLLM reads it: `16G` is 16 * 2^30, `16g` 16 * 10^9. None: it is not said, or no number."""
    found = _SIZE.fullmatch(text.strip()) if text is not None else None
    return None if found is None else int(float(found[1]) * _FACTORS[found[2]])


def _share(text: str | None) -> float | None:
    try:
        share = float(text or "")
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


def _less(name: str) -> str:
    return f'less in engine.arguments = ["{name}=…"]'


def _weights(config: RunConfig, shape: ModelShape | None) -> int:
    return BYTES[config.model.served_dtype] * shape.num_weights if shape else 0


def _on_cpu(engine: Vllm) -> bool:
    try:
        return find_installation(engine.environment).on_cpu
    except MissingPackage:
        return False  # said by the checks of the servers
