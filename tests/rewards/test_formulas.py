"""Rewards by formula, against the numbers of their specification (P-301 to P-303, P-305)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agrpo.config import RewardSection
from agrpo.errors import ConfigError
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout
from agrpo.rewards import load_reward, rewards
from agrpo.rewards.cosine_scaled import CosineScaled
from agrpo.rewards.repetition_penalty import RepetitionPenalty
from agrpo.rewards.soft_overlong_punishment import SoftOverlongPunishment
from tests.rewards.worlds import group_of

PAPER = {
    "min_value_correct": 1.0,
    "max_value_correct": 2.0,
    "min_value_wrong": -10.0,
    "max_value_wrong": 0.0,
    "exceed_value": -10.0,
}
EXACTLY = {"check": "exact_match", "max_len": 4096}


def group_of_lengths(*lengths: int, text: str = "4", **facts: object) -> RolloutGroup:
    """A group whose rollouts all say `text`, in so many tokens."""
    said = [{"role": "assistant", "content": text}]
    rollouts = [Rollout(completion=said, completion_ids=[0] * length, turns=[]) for length in lengths]
    return RolloutGroup(ticket=0, prompt=Prompt(id="p", messages=[], facts=facts), rollouts=rollouts, model_version=0)


@pytest.mark.spec("P-301")
def test_the_last_tokens_before_the_limit_are_punished_in_proportion() -> None:
    judge = rewards.build("soft_overlong_punishment", {"max_completion_len": 20480, "soft_punish_cache": 4096})
    assert judge(group_of_lengths(0, 16384, 18432, 20480, 20481, 40000)) == [0.0, 0.0, -0.5, -1.0, -1.0, -1.0]


@pytest.mark.spec("P-301")
@pytest.mark.parametrize("cache", [0, 21])
def test_a_cache_that_is_empty_or_longer_than_an_answer_is_refused(cache: int) -> None:
    with pytest.raises(ValueError, match=f"soft_punish_cache = {cache}"):
        rewards.build("soft_overlong_punishment", {"max_completion_len": 20, "soft_punish_cache": cache})
    assert rewards.build("soft_overlong_punishment", {"max_completion_len": 20, "soft_punish_cache": 20})


@settings(deadline=None, max_examples=50)
@given(longest=st.integers(1, 300), data=st.data())
def test_the_punishment_only_grows_with_the_length_and_keeps_within_its_bounds(
    longest: int, data: st.DataObject
) -> None:
    cache = data.draw(st.integers(1, longest))
    judge = SoftOverlongPunishment(max_completion_len=longest, soft_punish_cache=cache)
    values = judge(group_of_lengths(*range(longest + 3)))
    assert values == sorted(values, reverse=True)
    assert set(values[: longest - cache + 1]) == {0.0} and set(values[longest:]) == {-1.0}


@pytest.mark.spec("P-302", "P-302.par")
def test_a_right_answer_earns_more_when_short_and_a_wrong_one_loses_less_when_long() -> None:
    judge = rewards.build("cosine_scaled", EXACTLY)
    right = judge(group_of_lengths(0, 1024, 2048, 4096, 5000, answer="4"))
    wrong = judge(group_of_lengths(0, 1024, 2048, 4096, 5000, answer="5"))
    assert right == pytest.approx([1.0, 0.926777, 0.75, 0.5, 0.5], abs=5e-7)
    assert wrong == pytest.approx([-1.0, -0.926777, -0.75, -0.5, -0.5], abs=5e-7)


@pytest.mark.spec("P-302.test")
def test_the_papers_values_fall_to_their_lowest_at_the_limit() -> None:
    judge = rewards.build("cosine_scaled", {**EXACTLY, **PAPER})
    right = judge(group_of_lengths(1024, 4095, 4096, 9000, answer="4"))
    wrong = judge(group_of_lengths(1024, 4096, 9000, answer="5"))
    assert right == pytest.approx([1.853553, 1.0, -10.0, -10.0], abs=1e-6)
    assert wrong == pytest.approx([-8.535534, -10.0, -10.0], abs=1e-6)


@pytest.mark.spec("P-302")
def test_what_is_right_is_said_by_mathematics_unless_another_check_is_named() -> None:
    pytest.importorskip("math_verify", reason='Math-Verify is not installed: pip install "agrpo[math]"')
    judge = load_reward(RewardSection(name="cosine_scaled"))
    assert judge(group_of_lengths(0, text=r"\boxed{\frac{1}{2}}", solution="$0.5$")) == [1.0]
    assert judge(group_of_lengths(0, text=r"\boxed{3}", solution="$0.5$")) == [-1.0]
    assert judge(group_of_lengths(0, text="4", solution="?")) == [None]


@settings(deadline=None, max_examples=50)
@given(
    values=st.lists(st.floats(-9, 9), min_size=4, max_size=4),
    lengths=st.lists(st.integers(0, 150), min_size=2, max_size=8).map(sorted),
)
def test_cosine_values_keep_within_their_pair_and_go_one_way(values: list[float], lengths: list[int]) -> None:
    (low_wrong, high_wrong), (low_right, high_right) = sorted(values[:2]), sorted(values[2:])
    knobs = {
        "min_value_wrong": low_wrong,
        "max_value_wrong": high_wrong,
        "min_value_correct": low_right,
        "max_value_correct": high_right,
    }
    judge = CosineScaled(check="exact_match", max_len=100, **knobs)
    right = judge(group_of_lengths(*lengths, answer="4"))
    wrong = judge(group_of_lengths(*lengths, answer="5"))
    slack = 1e-12
    assert all(low_right - slack <= value <= high_right + slack for value in right)
    assert all(low_wrong - slack <= value <= high_wrong + slack for value in wrong)
    assert all(later <= earlier + slack for earlier, later in pairwise(right))
    assert all(later >= earlier - slack for earlier, later in pairwise(wrong))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"min_value_wrong": 0.0}, r"max_value_wrong = -0.5: expected at least min_value_wrong = 0.0"),
        ({"max_value_correct": 0.0}, r"max_value_correct = 0.0: expected at least min_value_correct = 0.5"),
        ({"check": "acuracy"}, r'no part named "acuracy"; did you mean "accuracy"\?'),
        ({"check": "cosine_scaled"}, "expected a reward that says 1 of a right answer"),
        ({"check": "exact_match", "check_settings": {"fatc": "x"}}, r'unknown setting; did you mean "fact"\?'),
    ],
)
def test_cosine_settings_that_contradict_each_other_are_refused(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_reward(RewardSection(name="cosine_scaled", settings=knobs))


@pytest.mark.spec("P-303")
def test_repeated_word_triples_are_punished_by_their_share() -> None:
    judge = rewards.build("repetition_penalty", {"ngram_size": 3, "max_penalty": -1.0})
    said = ["a b c a b c a b c", "a a a a a a", "a b c d", "a b", "", "A b\nc  a B C a b c"]
    expected = [-0.571429, -0.75, 0.0, 0.0, 0.0, -0.571429]
    assert judge(group_of(*said)) == pytest.approx(expected, abs=5e-7)


@pytest.mark.spec("P-303")
def test_a_penalty_that_would_reward_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_penalty = 0\.5"):
        rewards.build("repetition_penalty", {"max_penalty": 0.5})


def test_thoughts_before_a_call_repeat_too_and_results_and_calls_do_not() -> None:
    call: Any = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": "a b c a b c"}}}
    group = group_of("a b c")
    thinking: Any = {"role": "assistant", "content": "", "reasoning_content": "a b c", "tool_calls": [call]}
    group.rollouts[0].completion.insert(0, thinking)
    group.rollouts[0].completion.insert(1, {"role": "tool", "content": "x x x x x x"})
    judge = rewards.build("repetition_penalty", {"ngram_size": 3, "max_penalty": -1.0})
    assert judge(group) == [-0.25]  # abc bca cab abc: one of four is a repeat


@settings(deadline=None, max_examples=50)
@given(
    words=st.lists(st.sampled_from("abcd"), max_size=30),
    size=st.integers(1, 5),
    penalty=st.floats(-5, 0),
)
def test_saying_it_all_again_never_costs_less(words: list[str], size: int, penalty: float) -> None:
    judge = RepetitionPenalty(ngram_size=size, max_penalty=penalty)
    text = " ".join(words)
    once, twice = judge(group_of(text, f"{text} {text}"))
    assert penalty <= once <= 0 and penalty <= twice <= 0
    assert twice <= once + 1e-12


@pytest.mark.spec("P-305")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>2+2</think>4", 1.0),
        ("\n<think>\n2+2\n</think>\n\n4\n", 1.0),
        ("<think></think>4", 1.0),
        ("4", 0.0),
        ("2+2</think>4", 0.0),
        ("<think>2+2 4", 0.0),
        ("<think>2+2</think> \n", 0.0),
        ("so <think>2+2</think>4", 0.0),
        ("<think>a<think>b</think>4", 0.0),
        ("<think>a</think>4</think>5", 0.0),
        ("<think>a</think>4<think>b</think>5", 0.0),
        ("</think>4<think>", 0.0),
        ("", 0.0),
    ],
)
def test_reasoning_belongs_between_its_marks_before_the_answer(text: str, value: float) -> None:
    assert rewards.build("think_format", {})(group_of(text)) == [value]


def test_a_template_that_opens_the_reasoning_leaves_its_end_to_the_answer() -> None:
    judge = rewards.build("think_format", {"prompt_opens": True})
    assert judge(group_of("2+2</think>4", "<think>2+2</think>4", "4", "a</think>4</think>")) == [1.0, 0.0, 0.0, 0.0]


def test_marks_can_be_others() -> None:
    judge = rewards.build("think_format", {"opening": "[", "closing": "]"})
    assert judge(group_of("[2+2] 4", "<think>2+2</think>4")) == [1.0, 0.0]
