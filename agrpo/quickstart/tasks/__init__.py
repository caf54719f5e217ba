"""The tasks of `agrpo quickstart --task`, by name."""

from __future__ import annotations

from agrpo.errors import UnknownName
from agrpo.quickstart.question import Task
from agrpo.quickstart.tasks.sorting import SORTING
from agrpo.quickstart.tasks.thinking import THINKING
from agrpo.registry import nearest

TASKS: dict[str, Task] = {task.name: task for task in (THINKING, SORTING)}


def task_named(name: str) -> Task:
    """The task of that name. Raises `UnknownName`."""
    if name not in TASKS:
        raise UnknownName(f'quickstart has no task named "{name}"; {nearest(name, list(TASKS))}')
    return TASKS[name]


__all__ = ["TASKS", "task_named"]
