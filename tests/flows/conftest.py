"""What the tests of flows share: one Prefect API, and a small run to train."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.stages.walk import settings


@pytest.fixture(scope="session")
def api() -> str:
    """A Prefect API for this process and its children."""
    from flows.server import ensure_api

    ensure_api()
    return os.environ["PREFECT_API_URL"]


@pytest.fixture
def run_file(tiny_model: Path, tmp_path: Path) -> Path:
    """A small run's settings as TOML."""
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    # Each of its stages is a process that first imports, which takes long on a busy machine.
    tree = settings(tiny_model, prompts, tmp_path / "runs", stop={"max_steps": 4, "stall_seconds": 240})
    lines: list[str] = []
    for table, values in tree.items():
        entries = values if isinstance(values, list) else [values]
        header = f"[[{table}]]" if isinstance(values, list) else f"[{table}]"
        for entry in entries:
            lines += [header, *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]
    file = tmp_path / "run.toml"
    file.write_text("\n".join(lines))
    return file
