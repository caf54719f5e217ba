"""What the tests under a killer share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def api() -> str:
    """One Prefect API for the flows of all runs."""
    from flows.server import ensure_api

    ensure_api()
    return os.environ["PREFECT_API_URL"]
