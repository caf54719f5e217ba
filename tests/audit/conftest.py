"""A finished run, made once, and a copy of it for every test that harms one."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.queue.run_folder import RunFolder
from tests.audit.finished import copied, finish


@pytest.fixture(scope="session")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finish(tiny_model, tmp_path_factory.mktemp("audit"))


@pytest.fixture
def folder(finished: RunFolder, tmp_path: Path) -> RunFolder:
    return copied(finished, tmp_path / "run")
