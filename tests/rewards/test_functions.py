"""Rewards named by an import path: what they are called with, and why one cannot be used."""

from __future__ import annotations

import sys

import pytest

from agrpo.config import RewardSection
from agrpo.errors import RewardError
from agrpo.rewards import AsyncFunctionReward, FunctionReward, awaits, check_reward, load_reward
from agrpo.rewards.functions import FunctionReward as Loaded
from tests.rewards.worlds import group_of, section_of


def loaded(judge: str) -> Loaded:
    reward = load_reward(section_of(judge))
    assert isinstance(reward, FunctionReward)
    return reward


@pytest.mark.spec("A-198", "A-199", "A-206", "G-182")
def test_a_function_gets_conversations_tokens_every_column_and_the_calls_own_keywords() -> None:
    with pytest.raises(AssertionError) as caught:
        loaded("received")(group_of("a", "bb", solution="4"))
    assert str(caught.value) == (
        "completion_ids=[[0], [0, 1]] "
        "completions=[[{'role': 'assistant', 'content': 'a'}], [{'role': 'assistant', 'content': 'bb'}]] "
        "log_extra=log_extra log_metric=log_metric "
        "prompts=[[{'role': 'user', 'content': '2 + 2 ='}], [{'role': 'user', 'content': '2 + 2 ='}]] "
        "solution=['4', '4'] "
        "trainer_state=TrainerState(global_step=0, max_steps=None, epoch=0.0, num_train_epochs=None)"
    )


@pytest.mark.spec("A-198")
def test_a_function_without_open_keywords_gets_only_what_it_names() -> None:
    assert loaded("matches")(group_of("4", "5", solution="4", source="book")) == [1.0, 0.0]


@pytest.mark.spec("A-198")
def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(RewardError, match=r'needs "reference".*there are: prompts, .*, log_metric, sol'):
        loaded("needs_reference")(group_of("a", solution="4"))


def test_the_keywords_of_a_call_are_no_columns_of_the_dataset() -> None:
    assert loaded("notes").needed_facts == []
    assert loaded("matches").needed_facts == ["solution"]


def test_a_column_that_would_hide_a_keyword_is_named() -> None:
    with pytest.raises(RewardError, match='column "completions" hides a keyword; rename it'):
        loaded("length")(group_of("a", completions="b"))


@pytest.mark.spec("A-203")
@pytest.mark.parametrize(("judge", "limit"), [("above_two", 2), ("above_three", 3)])
def test_partials_and_callable_instances_are_rewards(judge: str, limit: int) -> None:
    assert loaded(judge)(group_of("aa", "aaa", "aaaa")) == [0.0, float(limit < 3), 1.0]


@pytest.mark.spec("A-201")
@pytest.mark.parametrize("judge", ["async_length", "async_partial"])
def test_async_functions_are_known_as_such(judge: str) -> None:
    reward = load_reward(section_of(judge))
    assert isinstance(reward, AsyncFunctionReward) and awaits(reward)
    assert not awaits(loaded("length"))


def test_an_attribute_says_that_the_whole_group_is_needed() -> None:
    assert loaded("compare").whole_group
    assert not loaded("length").whole_group


@pytest.mark.spec("A-204")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.rewards.judges:lenght", 'tests.rewards.judges has no "lenght"; did you mean "length"?'),
        ("tests.rewards.judges:unnamed", "is a lambda; define it with def"),
        ("tests.rewards.judges:<lambda>", "a lambda or a function inside a function"),
        ("tests.rewards.judges:make.<locals>.judge", "a lambda or a function inside a function"),
        ("tests.rewards.judges:Above", "is a class; make an instance"),
        ("tests.rewards.judges:answer", "is a int, which cannot be called"),
        ("tests.rewards.judges:by_position", 'takes "completions" by position only'),
        ("tests.rewards.judjes:length", 'there is no module "tests.rewards.judjes"'),
        (
            "tests.rewards.broken:length",
            "importing tests.rewards.broken failed: No module named 'no_such_package_anywhere'",
        ),
        ("exact_mtach", 'rewards has no part named "exact_mtach"; did you mean "exact_match"?'),
    ],
)
def test_a_reward_that_cannot_be_used_says_why(name: str, message: str) -> None:
    (problem,) = check_reward(RewardSection(name=name))
    assert message in problem


def test_a_reward_that_loads_has_no_problem() -> None:
    assert check_reward(section_of("length")) == []


def test_settings_of_a_function_are_refused() -> None:
    (problem,) = check_reward(section_of("length", settings={"limit": 3}))
    assert "has no settings; remove: limit" in problem


def test_an_unknown_knob_of_a_reward_is_named() -> None:
    (problem,) = check_reward(RewardSection(name="exact_match", settings={"fatc": "answer"}))
    assert problem == 'fatc: unknown setting; did you mean "fact"?'


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    (problem,) = check_reward(RewardSection(name="accuracy"))
    assert 'pip install "agrpo[math]"' in problem
