"""Names of stages: what a run consists of, and who is meant by a name."""

from __future__ import annotations

from agrpo.config.sections import WorkersSection

STAGES = ("generator", "scorer", "learner", "recorder")
"""The stages of every run, in the order a group passes them."""
SERVER = "server"
"""The stage of a run whose engine has servers of its own: one for each of them."""
KINDS = (SERVER, *STAGES)
"""Every stage of agrpo."""

OWN_REPLAY = "its replay of recorded steps"
"""What a learner says it waits for while it gets no further than the run was."""
START_OF_VLLM = "vLLM to start"
"""What a server says it waits for until it is healthy."""
NO_WORK = (OWN_REPLAY, START_OF_VLLM)
"""Waits that lie behind a stage which has begun anew, and do not count as work however long they take."""


def stages_of(workers: WorkersSection, servers: int = 0) -> list[str]:
    """Every process of a run by its name: `generator`, `generator-2`, …, in the order a group passes them.

    Its servers come first: `server`, `server-2`, ….
    """
    counts = {SERVER: servers, "generator": workers.generators, "scorer": workers.scorers}
    return [worker_name(stage, number) for stage in KINDS for number in range(1, counts.get(stage, 1) + 1)]


def worker_name(stage: str, number: int) -> str:
    """The first worker is called as its stage is."""
    return stage if number == 1 else f"{stage}-{number}"


def kind_of(name: str) -> str:
    """The stage that a worker is one of: `generator` for `generator-2`; any other name is its own kind."""
    stage, _, number = name.rpartition("-")
    return stage if stage in KINDS and number.isdecimal() else name


def number_of(name: str) -> int:
    """Which worker of its stage it is, from 1."""
    return 1 if kind_of(name) == name else int(name.rpartition("-")[2])
