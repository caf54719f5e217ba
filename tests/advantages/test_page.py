"""docs/objectives.md names every advantage and filter, and its examples are what a run takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agrpo.advantages import advantages
from agrpo.config import RunConfig, resolve
from agrpo.filters import filters, load_filter
from agrpo.registry import knobs_of
from agrpo.stages.scorer import scored_group
from tests.stages.groups import a_group

PAGE = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text("utf-8")


@pytest.mark.parametrize("name", [*advantages.names(), *filters.names()])
def test_every_advantage_and_filter_has_a_row(name: str) -> None:
    assert re.search(rf"^\| `{name}`", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", filters.names())
def test_every_setting_of_a_filter_is_named(name: str) -> None:
    assert all(
        re.search(rf"`\[?({knob}|low, high)\]?`|^{knob} = ", PAGE, re.MULTILINE) for knob in knobs_of(filters[name])
    )


def test_its_settings_of_groups_are_what_a_run_takes(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```toml\n(\[step\].*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\npath = "m"\n[prompts]\nname = "files"\npath = "p.jsonl"\n[[rewards]]\nname = "exact_match"\n'
        f"[stop]\nmax_steps = 1\n{block}"
    )
    config = RunConfig.build(resolve(file))
    assert [one.name for one in config.filters] == ["pass_rate", "overlong"]
    assert config.step.mask_truncated and config.step.zero_variance_reward == "exact_match"


def test_its_filter_of_ones_own_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(.*?@part.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "my_filters.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    tree: dict[str, Any] = {
        "model": {"path": "m"},
        "prompts": {"name": "files", "path": "p.jsonl"},
        "rewards": [{"name": "exact_match"}],
        "stop": {"max_steps": 1},
        "filters": [{"name": "my_filters:Short", "most": 5}],
    }
    (section,) = RunConfig.build(resolve(values=tree)).filters
    short = load_filter(section)
    assert [short(scored_group(a_group(0, lengths=lengths), [], 64)) for lengths in ((4, 5), (4, 6))] == [True, False]
