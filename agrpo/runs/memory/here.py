"""The machine that a run is about to begin on."""

from __future__ import annotations

import os
from pathlib import Path

from agrpo.runs.memory.gpus import find_gpus, torch_build
from agrpo.runs.memory.machine import Machine, read_memory


def machine_here() -> Machine:
    """This machine, as a process begun by this one sees it."""
    gpus = find_gpus(os.environ, torch_build())
    memory = read_memory(Path("/proc"), Path("/sys/fs/cgroup"))
    return Machine(memory=memory, gpus=gpus.memory, gpus_doubt=gpus.doubt)
