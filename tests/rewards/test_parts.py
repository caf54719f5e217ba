"""The rewards that agrpo brings."""

from __future__ import annotations

import json

import pytest

from agrpo.config import RewardSection
from agrpo.errors import RewardError
from agrpo.records.rollout import Rollout
from agrpo.rewards import answer_of, load_reward, rewards
from tests.rewards.worlds import group_of

SUM = {"question": "4 - 1 - 7 =", "answer": "-4", "metadata": {"source_dataset": "chain_sum", "difficulty": {}}}


def rollout_of(*messages: tuple[str, str | None]) -> Rollout:
    return Rollout(completion=[{"role": r, "content": c} for r, c in messages], completion_ids=[], turns=[])


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ([("assistant", "<think>2+2</think> 4 \n")], "4"),
        ([("assistant", "4")], "4"),
        ([("assistant", "a</think>b</think>c")], "c"),
        ([("assistant", "1"), ("tool", "2"), ("assistant", "3")], "3"),
        ([("assistant", None)], ""),
        ([], ""),
    ],
)
def test_the_answer_is_what_follows_the_last_thought(messages: list[tuple[str, str | None]], answer: str) -> None:
    assert answer_of(rollout_of(*messages)) == answer


def test_exact_match_compares_stripped_text() -> None:
    judge = rewards.build("exact_match", {})
    assert judge(group_of("<think>?</think> 4 ", "4.0", "4", answer=" 4")) == [1.0, 0.0, 1.0]


def test_exact_match_takes_another_fact_and_another_mark() -> None:
    judge = rewards.build("exact_match", {"fact": "solution", "after": "####"})
    assert judge(group_of("so #### 72", "72", "71", solution=72)) == [1.0, 1.0, 0.0]


def test_a_fact_that_is_missing_is_named() -> None:
    with pytest.raises(RewardError, match=r'"exact_match" needs the fact "answer".*it has: solution'):
        rewards.build("exact_match", {})(group_of("4", solution="4"))


def test_reasoning_gym_pays_what_the_dataset_pays() -> None:
    group = group_of(
        "<think>4-1=3;3-7=-4</think>-4",
        "it is -4",
        "5",
        reasoning_gym_dataset="chain_sum",
        reasoning_gym_entry=json.dumps(SUM),
    )
    assert rewards.build("reasoning_gym", {})(group) == [1.0, 2 / 8, 0.0]
    assert rewards.build("reasoning_gym", {"binary": True})(group) == [1.0, 0.0, 0.0]


@pytest.mark.spec("A-022", "P-304")
def test_accuracy_compares_mathematics() -> None:
    pytest.importorskip("math_verify", reason='Math-Verify is not installed: pip install "agrpo[math]"')
    judge = load_reward(RewardSection(name="accuracy"))
    group = group_of(r"so \boxed{\frac{1}{2}}", "<think>0.4</think> $0.5$", r"\boxed{2}", "no idea", solution="$1/2$")
    assert judge(group) == [1.0, 1.0, 0.0, 0.0]
    assert judge(group_of("4", solution="?")) == [None]
