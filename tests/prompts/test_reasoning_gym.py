from __future__ import annotations

import json

import pytest
from reasoning_gym import create_dataset
from reasoning_gym.factory import get_score_answer_fn

from agrpo.errors import PromptError
from agrpo.prompts.reasoning_gym import ReasoningGym


def test_a_row_asks_the_question_and_carries_the_entry_that_judges_it():
    row = ReasoningGym(dataset="chain_sum", size=5, seed=11, settings={"max_terms": 3})()[2]
    item = create_dataset("chain_sum", size=5, seed=11, max_terms=3)[2]
    assert row["prompt"] == [{"role": "user", "content": item["question"]}]
    assert row["reasoning_gym_dataset"] == "chain_sum"
    entry = json.loads(row["reasoning_gym_entry"])
    assert get_score_answer_fn("chain_sum")(item["answer"], entry) == 1.0
    assert get_score_answer_fn("chain_sum")("no number", entry) == 0.0


def test_a_system_message_comes_before_every_question():
    rows = ReasoningGym(dataset="chain_sum", size=2, system="Think first.")()
    assert [row["prompt"][0] for row in rows] == [{"role": "system", "content": "Think first."}] * 2


def test_seeds_closer_than_the_size_share_questions():
    first, next_one = (ReasoningGym(dataset="chain_sum", size=10, seed=seed)() for seed in (100, 101))
    assert first[1]["prompt"] == next_one[0]["prompt"]


def test_rows_end_where_the_size_says():
    rows = ReasoningGym(dataset="chain_sum", size=3)()
    assert len(rows) == 3
    assert rows[-1] == rows[2]
    with pytest.raises(IndexError):
        rows[3]


def test_an_unknown_dataset_is_refused_with_the_nearest_name():
    with pytest.raises(PromptError, match='no dataset "chain_sums"; did you mean "chain_sum"'):
        ReasoningGym(dataset="chain_sums")()


@pytest.mark.parametrize("settings", [{"terms": 3}, {"min_terms": 5, "max_terms": 2}])
def test_settings_the_dataset_refuses_are_refused_with_the_ones_it_has(settings: dict):
    with pytest.raises(PromptError, match=r'do not fit "chain_sum": .*; it has: min_terms, max_terms, min_digits'):
        ReasoningGym(dataset="chain_sum", settings=settings)()


def test_a_dataset_whose_scorer_cannot_judge_from_json_is_refused():
    with pytest.raises(PromptError, match='"rearc" cannot be used'):
        ReasoningGym(dataset="rearc", size=2)()
