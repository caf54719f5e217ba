"""An advantage that needs no group, from a package of its own: prompts are asked once, and groups of one are trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import ConfigError
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.runs import prepare
from tests.stages.walk import settings, walk

MODULE = """
import numpy as np
from agrpo.registry import part

@part
class Against:
    \"\"\"A fixed value in the place of a group's mean.\"\"\"
    value: float = 0.5
    min_group, spans_step = 1, False

    def __call__(self, groups):
        return [np.nan_to_num(group.totals - self.value).astype(np.float32) for group in groups]
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "against-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: against\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agrpo.advantages]\nagainst = against_value:Against\n")
    (tmp_path / "site" / "against_value.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "site")


def asked_once(model: Path, prompts: Path, place: Path, advantage: str) -> dict[str, Any]:
    tables: dict[str, Any] = {"advantage": {"name": advantage}, "engine": {"num_generations": 1}}
    return settings(model, prompts, place, stop={"max_steps": 2}, **tables)


def test_a_group_of_one_is_refused_where_an_advantage_compares_rollouts(tmp_path: Path) -> None:
    tree = asked_once(tmp_path, tmp_path / "prompts.jsonl", tmp_path, "leave_one_out")
    with pytest.raises(
        ConfigError, match=r"engine.num_generations = 1: the advantage leave_one_out compares .* ask for 2"
    ):
        RunConfig.build(resolve(values=tree))


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_groups_of_one_are_trained_where_an_advantage_needs_no_group(tiny_model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+1 ="}]} for first in range(4)]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    folder: RunFolder = prepare(resolve(values=asked_once(tiny_model, prompts, tmp_path, "against")))
    walk(folder)
    for step in (1, 2):
        plan = folder.plan(StepKey(0, step))
        assert plan is not None
        assert (len(plan.samples), plan.drops, plan.empty) == (2, [], False)
        assert all(sample.advantage > 0 for sample in plan.samples)
