"""docs/objectives.md names what there is, and counts what the reference cases say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from agrpo.aggregations import aggregations
from agrpo.config import RunConfig, resolve
from agrpo.config.objective import CorrectionSection, DivergenceSection, EntropySection, MasksSection
from agrpo.losses import losses
from agrpo.registry import knobs_of
from tests.losses.reference import names
from tests.losses.test_golden import CONSTANT

PAGE = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()
TABLES = {
    "correction": CorrectionSection,
    "masks": MasksSection,
    "divergence": DivergenceSection,
    "entropy": EntropySection,
}
BASE = (
    '[model]\npath = "m"\n[prompts]\nname = "files"\npath = "p.jsonl"\n[[rewards]]\nname = "exact_match"\n'
    "[stop]\nmax_steps = 1\n"
)


@pytest.mark.parametrize("name", [*losses.names(), *aggregations.names()])
def test_every_objective_and_aggregation_has_a_row(name: str):
    assert f"| `{name}`" in PAGE


@pytest.mark.parametrize("name", losses.names())
def test_every_setting_of_an_objective_is_named(name: str):
    assert all(f"`{knob}`" in PAGE for knob in knobs_of(losses[name]))


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_around_an_objective_is_named(table: str):
    assert [knob for knob in knobs_of(TABLES[table]) if f"`{table}.{knob}`" not in PAGE] == []


@pytest.mark.parametrize("block", re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
def test_its_settings_are_what_a_run_takes(tmp_path: Path, block: str):
    file = tmp_path / "run.toml"
    file.write_text(BASE + block)
    tree = RunConfig.build(resolve(file)).settings.tree
    for name, table in tomllib.loads(block).items():
        assert isinstance(table, list) or {key: tree[name][key] for key in table} == table


def test_what_the_reference_cases_say_is_counted():
    told = " ".join(PAGE.split())
    assert f"holds {len(names())} losses and gradients" in told
    assert f"All {len(names())} are reproduced to 1e-6" in told
    assert f"{len(CONSTANT)} of them but for a constant" in told.replace("two", "2").replace("Two", "2")
