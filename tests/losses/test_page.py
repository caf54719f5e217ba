"""docs/objectives.md names what there is, and counts what the reference cases say."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from agrpo.aggregations import aggregations
from agrpo.config import RunConfig, resolve
from agrpo.losses import losses
from agrpo.registry import knobs_of
from tests.losses.test_golden import NOT_BUILT, golden, lacking

PAGE = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()


@pytest.mark.parametrize("name", [*losses.names(), *aggregations.names()])
def test_every_objective_and_aggregation_has_a_row(name: str):
    assert f"| `{name}`" in PAGE


@pytest.mark.parametrize("name", losses.names())
def test_every_setting_of_an_objective_is_named(name: str):
    assert all(f"`{knob}`" in PAGE for knob in knobs_of(losses[name]))


def test_its_settings_are_what_a_run_takes(tmp_path: Path):
    block, *_ = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\npath = "m"\n[prompts]\nname = "files"\npath = "p.jsonl"\n[[rewards]]\nname = "exact_match"\n'
        f"[stop]\nmax_steps = 1\n{block}"
    )
    tree = RunConfig.build(resolve(file)).settings.tree
    assert tree["loss"]["name"] == "score_centering" and tree["engine"]["num_sampler_logprobs"] == 8


def test_what_the_reference_cases_lack_is_counted():
    told = " ".join(PAGE.split())
    counts = Counter(lacking(case) for case in golden()["cases"])
    assert f"The {counts.pop(None)} whose objectives are built here" in told
    assert set(counts) == set(NOT_BUILT)
    assert sorted(
        int(number)
        for number in re.findall(r"\((\d+)\)", told.partition("The others ask")[2].partition("The reference")[0])
    ) == sorted(counts.values())
