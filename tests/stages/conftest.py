"""A run folder in memory, and small runs of the real stages."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import resolve
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from tests.stages.walk import settings


@pytest.fixture
def folder() -> RunFolder:
    return RunFolder.create(f"memory://{uuid.uuid4().hex}", {"name": "test"})


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


@pytest.fixture
def begin(tiny_model: Path, prompts: Path, tmp_path: Path):
    """Begins a run with settings laid over the small one."""

    def begun(name: str = "run", **tables: Any) -> RunFolder:
        file = tables.pop("file", prompts)
        tree = settings(tiny_model, file, tmp_path, **tables)
        return prepare(resolve(values=tree), folder=str(tmp_path / name))

    return begun
