"""The plan of memory: what all processes of a run on this machine are likely to take, before the first of them begins.

    shape      a model's widths, from its files
    rows       how large rows and rollouts can get
    parts      what each process holds
    servers    and vLLM's, which the run starts
    reward_models   and those of reward models
    machine    what there is
    gpus       and of GPUs, in the learner's eyes
    here       of this machine
    plan       both held against each other, place by place
    telling    as people read it

A run is refused only where what it takes at any rate is more than there is, and both are known.
"""

from agrpo.runs.memory.here import machine_here
from agrpo.runs.memory.machine import Machine, Memory
from agrpo.runs.memory.parts import Part
from agrpo.runs.memory.plan import MemoryPlan, Place, plan_memory
from agrpo.runs.memory.reward_models import gpu_index, reward_models
from agrpo.runs.memory.servers import gpus_of_servers
from agrpo.runs.memory.telling import headings, lines, problems, warnings

__all__ = [
    "Machine",
    "Memory",
    "MemoryPlan",
    "Part",
    "Place",
    "gpu_index",
    "gpus_of_servers",
    "headings",
    "lines",
    "machine_here",
    "plan_memory",
    "problems",
    "reward_models",
    "warnings",
]
