"""`[divergence]`: what is refused by name before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import ConfigError
from tests.stages.walk import settings


def config_of(tmp_path: Path, **tables: Any) -> RunConfig:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}]}))
    return RunConfig.build(resolve(values=settings(tmp_path / "model", file, tmp_path / "runs", **tables)))


@pytest.mark.spec("G-145")
def test_a_reference_that_is_not_there_cannot_follow(tmp_path: Path):
    with pytest.raises(ValueError, match=r"divergence.sync_steps = 512: there is no reference policy"):
        config_of(tmp_path, divergence={"sync_steps": 512})


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        (
            {"coefficient": 0.1, "sync_steps": 4},
            "divergence.sync_steps = 4: with adapter.rank the reference is the model",
        ),
        ({"coefficient": 0.1, "mixup": 0.5}, "divergence.mixup = 0.5: says how far the reference policy moves"),
        ({"coefficient": 0.1, "sync_steps": 0}, "divergence.sync_steps = 0"),
        ({"coefficient": 0.1, "sync_steps": 4, "mixup": 0.0}, "divergence.mixup = 0.0"),
        ({"coefficient": 0.1, "sync_steps": 4, "mixup": 1.5}, "divergence.mixup = 1.5"),
        ({"coefficient": -0.1}, "divergence.coefficient = -0.1"),
        ({"beta": 0.1}, "divergence.beta: unknown setting"),
    ],
)
def test_references_that_cannot_be_are_refused_by_name(tmp_path: Path, divergence: dict[str, Any], expected: str):
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, divergence=divergence, adapter={"rank": 2})
    assert caught.value.problems[0].startswith(expected)


def test_a_reference_follows_after_every_so_many_updates(tmp_path: Path):
    divergence = config_of(tmp_path, divergence={"coefficient": 0.1, "sync_steps": 3}).divergence
    assert [number for number in range(1, 10) if divergence.syncs_after(number)] == [3, 6, 9]
    assert divergence.mixup == 0.6
    staying = config_of(tmp_path, divergence={"coefficient": 0.1}).divergence
    assert not any(staying.syncs_after(number) for number in range(1, 2000))
