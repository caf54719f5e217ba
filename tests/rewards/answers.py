"""Answers that hold a program, and what becomes of one."""

from __future__ import annotations

from agrpo.rewards.programs.cases import Case
from agrpo.rewards.programs.running import Bounds, Launcher

BOUNDS = Bounds(
    cpu_seconds=1,
    wall_seconds=30.0,
    memory_bytes=256 * 2**20,
    output_bytes=1000,
    file_bytes=2**20,
    network="none",
)


def failure_of(launcher: Launcher, program: str, case: Case | None = None) -> str | None:
    case = case or Case(output="done")
    return launcher.run(program, case).failure(case, BOUNDS)


def block(program: str, mark: str = "python") -> str:
    return f"<think>?</think>Here:\n```{mark}\n{program}\n```\nThat is it."
