"""What holds for every reward of agrpo."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RewardSection
from agrpo.errors import ConfigError, MissingPackage, RewardError
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout
from agrpo.rewards import load_reward, rewards

ENTRY = {"question": "2 + 2 =", "answer": "4", "metadata": {"source_dataset": "chain_sum"}}
FACTS = {
    "answer": "4",
    "solution": "4",
    "reasoning_gym_dataset": "chain_sum",
    "reasoning_gym_entry": json.dumps(ENTRY),
    "tests": [{"input": "", "output": "4"}],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "http_judge": {"url": "http://localhost:1/judge"},
    "soft_overlong_punishment": {"max_completion_len": 20, "soft_punish_cache": 10},
}
"""Of rewards that cannot do without."""
ANSWERS = {
    "code_execution": ("```python\nprint(4)\n```", "```python\nprint(7)\n```"),
    "reward_model": None,
    "soft_overlong_punishment": None,
    "repetition_penalty": None,
    "think_format": None,
}
"""A right answer and a wrong one; None of rewards to which an answer's form is all. `4` and `7` to the others."""
CHECKS = {"cosine_scaled": "accuracy"}
"""Rewards that let another one say what is right."""


@pytest.fixture(autouse=True, scope="module")
def _classifier(tiny_classifier: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    """A reward model's values have the same bits alone and together only where no texts share a batch."""
    SETTINGS["reward_model"] = {"path": str(tiny_classifier), "batch_size": 1}


def group_of(*answers: str, facts: dict[str, Any]) -> RolloutGroup:
    rollouts = [
        Rollout(completion=[{"role": "assistant", "content": text}], completion_ids=[1], turns=[]) for text in answers
    ]
    prompt = Prompt(id="p", messages=[{"role": "user", "content": "2 + 2 ="}], facts=facts)
    return RolloutGroup(ticket=0, prompt=prompt, rollouts=rollouts, model_version=0)


def reward_named(name: str) -> Any:
    if inspect.iscoroutinefunction(rewards[name].__call__):
        pytest.skip(f"{name} asks something outside")
    try:
        return load_reward(RewardSection(name=name, settings=SETTINGS.get(name, {})))
    except MissingPackage as error:
        pytest.skip(str(error))


def answers_for(name: str) -> tuple[str, str]:
    return ANSWERS.get(name, ("4", "7")) or ("<think>?</think>4", "7 7 7 7")


@pytest.mark.parametrize("name", rewards.names())
def test_the_right_answer_is_worth_more_than_a_wrong_one(name: str) -> None:
    reward = reward_named(name)
    right, wrong, empty = reward(group_of(*answers_for(name), "", facts=FACTS))
    if ANSWERS.get(name, True) is not None:
        assert right == pytest.approx(1.0, abs=1e-5) and wrong < right and empty < right
    assert list(reward(group_of(facts=FACTS))) == []


@pytest.mark.parametrize("name", rewards.names())
def test_completions_are_judged_alike_alone_and_together_unless_all_are_needed(name: str) -> None:
    reward = reward_named(name)
    if reward.whole_group:
        pytest.skip(f"{name} compares the completions of a group")
    answers = answers_for(name)
    together = reward(group_of(*answers, facts=FACTS))
    assert list(together) == [reward(group_of(text, facts=FACTS))[0] for text in answers]


@pytest.mark.parametrize("name", rewards.names())
def test_a_prompt_without_its_facts_is_an_error_that_names_one(name: str) -> None:
    reward = reward_named(name)
    if ANSWERS.get(name, True) is None:
        assert len(reward(group_of("4", facts={}))) == 1
        return
    with pytest.raises(RewardError, match=f'reward "{CHECKS.get(name, name)}" needs the fact'):
        reward(group_of("4", facts={}))


@pytest.mark.parametrize("name", rewards.names())
def test_a_reward_is_a_frozen_part_that_refuses_unknown_knobs(name: str) -> None:
    assert isinstance(rewards[name].whole_group, bool)
    assert dataclasses.fields(rewards[name]) is not None and rewards[name].__dataclass_params__.frozen
    with pytest.raises(ConfigError, match="unknown setting"):
        rewards.build(name, {**SETTINGS.get(name, {}), "no_such_knob": 1})


def test_naming_every_reward_and_running_the_template_imports_nothing_heavy() -> None:
    code = (
        "import sys; import agrpo.rewards.sandbox.template; from agrpo.rewards import rewards; "
        "[rewards[name] for name in rewards.names()]; "
        "print(sorted({'torch', 'transformers', 'prefect', 'duckdb', 'pyarrow', 'reasoning_gym', 'numpy'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
