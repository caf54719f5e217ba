"""What would keep a run from working is said before it begins: columns that rewards need, and where the run is to lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.runs.checks import check
from tests.runs.made import a_config


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ({"name": "exact_match"}, 'reward "exact_match" needs "answer", which no prompt has (they have: nothing)'),
        ({"name": "exact_match", "fact": "label"}, 'reward "exact_match" needs "label"'),
        (
            {"name": "tests.rewards.judges:needs_reference"},
            'judges:needs_reference" needs "reference", which no prompt has',
        ),
        ({"name": "reasoning_gym"}, 'reward "reasoning_gym" needs "reasoning_gym_dataset"'),
        ({"name": "tests.stages.judges:distinct_tokens"}, None),
    ],
)
def test_a_column_that_a_reward_needs_and_no_prompt_has_is_named(
    tmp_path: Path, reward: dict[str, str], told: str | None
):
    tree = a_config(tmp_path).settings.tree
    problems = check(RunConfig.build(resolve(values={**tree, "rewards": [reward]})))
    assert problems == [] if told is None else told in problems[0]


def test_a_column_of_one_prompt_is_enough(tmp_path: Path):
    config = a_config(tmp_path)
    prompt = [{"role": "user", "content": "7"}]
    rows = [{"prompt": prompt}, {"prompt": prompt, "answer": "7"}]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tree = {**config.settings.tree, "rewards": [{"name": "exact_match"}]}
    assert check(RunConfig.build(resolve(values=tree))) == []


def test_a_place_of_a_kind_that_nothing_opens_is_refused(tmp_path: Path):
    tree = a_config(tmp_path).settings.tree
    (problem,) = check(RunConfig.build(resolve(values={**tree, "run": {**tree["run"], "dir": "foo://x"}})))
    assert problem.startswith("run.dir: ") and "foo" in problem
