"""A run folder in memory."""

from __future__ import annotations

import uuid

import pytest

from agrpo.queue.run_folder import RunFolder


@pytest.fixture
def folder() -> RunFolder:
    return RunFolder.create(f"memory://{uuid.uuid4().hex}", {"name": "test"})
