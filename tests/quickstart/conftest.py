"""A prepared task, small enough for a test: two steps of warm start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agrpo.quickstart.prepare import Prepared, prepare
from agrpo.quickstart.question import Task
from agrpo.quickstart.tasks import task_named


@pytest.fixture(scope="session")
def short_task() -> Task:
    return replace(task_named("thinking"), warm_start_steps=2)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, short_task: Task) -> Prepared:
    return prepare(short_task, tmp_path_factory.mktemp("start") / "thinking", 1, num_threads=1)
