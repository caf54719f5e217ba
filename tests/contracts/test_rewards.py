"""What holds for every reward of agrpo."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from agrpo.config import RewardSection
from agrpo.errors import ConfigError, MissingPackage, RewardError
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout
from agrpo.rewards import awaits, load_reward, rewards

ENTRY = {"question": "2 + 2 =", "answer": "4", "metadata": {"source_dataset": "chain_sum"}}
FACTS = {"answer": "4", "solution": "4", "reasoning_gym_dataset": "chain_sum", "reasoning_gym_entry": json.dumps(ENTRY)}


def group_of(*answers: str, facts: dict[str, Any]) -> RolloutGroup:
    rollouts = [
        Rollout(completion=[{"role": "assistant", "content": text}], completion_ids=[1], turns=[]) for text in answers
    ]
    prompt = Prompt(id="p", messages=[{"role": "user", "content": "2 + 2 ="}], facts=facts)
    return RolloutGroup(ticket=0, prompt=prompt, rollouts=rollouts, model_version=0)


def reward_named(name: str) -> Any:
    try:
        return load_reward(RewardSection(name=name))
    except MissingPackage as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", rewards.names())
def test_the_right_answer_is_worth_more_than_a_wrong_one(name: str) -> None:
    reward = reward_named(name)
    if awaits(reward):
        pytest.skip(f"{name} asks something outside")
    right, wrong, empty = reward(group_of("4", "7", "", facts=FACTS))
    assert right == 1.0 and wrong < right and empty < right
    assert list(reward(group_of(facts=FACTS))) == []


@pytest.mark.parametrize("name", rewards.names())
def test_completions_are_judged_alike_alone_and_together_unless_all_are_needed(name: str) -> None:
    reward = reward_named(name)
    if reward.whole_group:
        pytest.skip(f"{name} compares the completions of a group")
    together = reward(group_of("4", "7", facts=FACTS))
    assert list(together) == [reward(group_of(text, facts=FACTS))[0] for text in ("4", "7")]


@pytest.mark.parametrize("name", rewards.names())
def test_a_prompt_without_its_facts_is_an_error_that_names_one(name: str) -> None:
    with pytest.raises(RewardError, match=f'reward "{name}" needs the fact'):
        reward_named(name)(group_of("4", facts={}))


@pytest.mark.parametrize("name", rewards.names())
def test_a_reward_is_a_frozen_part_that_refuses_unknown_knobs(name: str) -> None:
    assert isinstance(rewards[name].whole_group, bool)
    assert dataclasses.fields(rewards[name]) is not None and rewards[name].__dataclass_params__.frozen
    with pytest.raises(ConfigError, match="unknown setting"):
        rewards.build(name, {"no_such_knob": 1})


def test_naming_every_reward_and_running_the_template_imports_nothing_heavy() -> None:
    code = (
        "import sys; import agrpo.rewards.sandbox.template; from agrpo.rewards import rewards; "
        "[rewards[name] for name in rewards.names()]; "
        "print(sorted({'torch', 'transformers', 'prefect', 'duckdb', 'pyarrow', 'reasoning_gym', 'numpy'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
