"""Runs whose learners can be stopped at any write."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from agrpo.queue.run_folder import RunFolder
from tests.protocol.learners import TABLES
from tests.protocol.stopping import Stores
from tests.stages.conftest import begin, prompts

__all__ = ["begin", "prompts"]


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    return Stores(monkeypatch)


@pytest.fixture
def begin_in_memory(begin: Callable[..., RunFolder]) -> Callable[..., RunFolder]:
    """Begins a run of three steps in this process's memory: what is kept there is as exclusive, and faster."""

    def begun(**tables: Any) -> RunFolder:
        prepared = begin(uuid.uuid4().hex, **{**TABLES, **tables})
        return RunFolder.create(f"memory://{uuid.uuid4().hex}", prepared.document())

    return begun
