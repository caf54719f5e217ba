"""Names of measures: documented, and with the unit that their words promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agrpo.metrics.names import MEASURES, Rule, measure_named, rule_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
SPECIFICATION = [DOCUMENT.parent / "spec" / name for name in ("async_grpo.md", "grpo.md")]


def test_the_document_lists_exactly_the_measures():
    table = DOCUMENT.read_text("utf-8").partition("\n## The measures\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \| (.+) \| (.+?) \|$", table, re.MULTILINE)
    listed = {(m.name, m.unit, m.over, m.meaning, m.row) for m in MEASURES}
    assert sorted(lines) == sorted(listed)


def test_every_measure_has_the_row_that_names_it():
    text = "\n".join(page.read_text("utf-8") for page in SPECIFICATION)
    rows = dict(re.findall(r"^\| ([AG]-\d+) \| (.+)$", text, re.MULTILINE))
    assert [m.name for m in MEASURES if m.row != "agrpo" and f"`{m.name}`" not in rows[m.row]] == []


@pytest.mark.spec("A-277", "A-278", "A-279")
def test_the_rule_is_in_whole_words_of_the_last_part():
    assert rule_of("sample/dropped_stale_count") is Rule.SUM
    assert rule_of("account/counter_mean") is Rule.MEAN
    assert rule_of("rollout/turns_max") is Rule.LARGEST
    assert rule_of("sampling/importance_sampling_ratio/min") is Rule.SMALLEST
    assert rule_of("completions/mean_terminated_length") is Rule.MEAN
    assert rule_of("completions/max_terminated_length") is Rule.LARGEST
    assert rule_of("max_steps/mean") is Rule.MEAN
    assert rule_of("num_tokens") is Rule.NEWEST


@pytest.mark.spec("A-280")
def test_units_are_those_that_the_names_end_in():
    for measure in MEASURES:
        if measure.name.endswith("tokens_per_s"):
            assert measure.unit == "tokens/s", measure.name
        elif measure.name.endswith("_s"):
            assert measure.unit == "s", measure.name
        assert (measure.unit == "s") <= measure.name.endswith("_s"), measure.name
        if measure.name.endswith("_frac"):
            assert measure.unit == "share", measure.name
        if measure.name.endswith("_per_step"):
            assert (measure.over, measure.rule) == ("steps", Rule.MEAN), measure.name


def test_a_rewards_name_stands_where_the_document_says_name():
    found = measure_named("rewards/my.module:judge/group_std")
    assert found is not None and found.name == "rewards/{name}/group_std"
    assert measure_named("rewards/mean") is None
    assert measure_named("reward_of_mine") is None
