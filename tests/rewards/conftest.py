"""A launcher for all programs of a page of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agrpo.rewards.programs.running import Launcher, launched
from tests.rewards.answers import BOUNDS


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with launched(BOUNDS) as running_launcher:
        yield running_launcher
