from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import pytest
import reasoning_gym
from reasoning_gym.factory import get_score_answer_fn

from agrpo.errors import UnknownName
from agrpo.quickstart.question import Part, Question, part_of
from agrpo.quickstart.tasks import TASKS, sorting, task_named, thinking
from agrpo.quickstart.tasks.sorting import SORTING
from agrpo.quickstart.tasks.thinking import THINKING


def test_the_thousands_of_sums_fall_into_three_parts_without_common_content() -> None:
    questions = thinking.all_questions()
    contents = {part: {question.content for question in thinking.questions_of(part)} for part in Part}
    assert len({question.text for question in questions}) == 4000
    assert sum(len(thinking.questions_of(part)) for part in Part) == 4000
    assert not contents[Part.HELD_OUT] & contents[Part.WARM_START]
    assert not contents[Part.HELD_OUT] & contents[Part.TRAINING]
    assert not contents[Part.WARM_START] & contents[Part.TRAINING]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_no_held_out_content_is_demonstrated_or_trained_under_any_seed(task) -> None:
    held_out = {question.content for question in task.held_out()}
    demonstrated = {shown.question.content for seed in (0, 1) for shown in islice(task.demonstrations(seed), 5000)}
    trained = {question.content for seed in (0, 1) for question in task.training(seed)}
    assert len(held_out) > 200
    assert not held_out & demonstrated
    assert not held_out & trained
    assert not demonstrated & trained


def test_the_parts_of_sorting_share_no_content_even_at_the_same_length() -> None:
    drawn = {part: {question.content for question in sorting.distinct(f"{part}", part, [6], 5000)} for part in Part}
    assert [len(contents) for contents in drawn.values()] == [5000, 5000, 5000]
    assert not drawn[Part.HELD_OUT] & drawn[Part.WARM_START]
    assert not drawn[Part.HELD_OUT] & drawn[Part.TRAINING]
    assert not drawn[Part.WARM_START] & drawn[Part.TRAINING]


def test_the_parts_get_the_shares_of_content_they_are_meant_to() -> None:
    counts = Counter(part_of(f"content {number}") for number in range(20_000))
    shares = {part: round(counts[part] / 20_000, 2) for part in Part}
    assert shares == {Part.HELD_OUT: 0.2, Part.WARM_START: 0.55, Part.TRAINING: 0.25}


def test_the_same_terms_in_another_order_are_the_same_content() -> None:
    by_text = {question.metadata["expression"]: question for question in thinking.all_questions()}
    assert by_text["4 + 5 - 2"].content == by_text["5 - 2 + 4"].content == by_text["5 + 4 - 2"].content
    assert by_text["4 + 5 - 2"].content != by_text["4 + 2 - 5"].content


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_demonstrations_earn_the_full_reward_of_the_datasets_own_scorer(task) -> None:
    score = get_score_answer_fn(task.dataset)
    for shown in islice(task.demonstrations(3), 500):
        answer = shown.completion.rpartition("</think>")[2]
        assert score(answer, json.loads(shown.question.row(task.dataset)["reasoning_gym_entry"])) == 1.0


def test_sums_read_as_reasoning_gym_words_them() -> None:
    ours = {question.text: question.answer for question in thinking.all_questions()}
    theirs = reasoning_gym.create_dataset(
        "chain_sum", min_terms=3, max_terms=3, min_digits=1, max_digits=1, seed=5, size=200
    )
    assert all(ours[item["question"]] == item["answer"] for item in theirs)


def test_lists_read_as_reasoning_gym_words_them_without_its_note_on_the_format() -> None:
    for item in reasoning_gym.create_dataset(
        "number_sorting", min_decimals=0, max_decimals=0, min_value=0, max_value=58, seed=5, size=50
    ):
        numbers = [int(float(number)) for number in item["metadata"]["original_numbers"]]
        ours = sorting.question_of(numbers, item["metadata"]["direction"])
        assert ours.text == item["question"].split("\n")[0]
        assert ours.answer == item["answer"]


def test_working_shows_each_sum_and_passes_below_zero() -> None:
    question = next(one for one in thinking.all_questions() if one.metadata["expression"] == "4 - 9 + 2")
    assert thinking.worked(question) == "<think>4-9=-5;-5+2=-3</think>-3"


def test_the_first_token_is_weighted_so_that_one_answer_in_four_begins_by_thinking():
    shown = list(islice(THINKING.demonstrations(1), 10_000))
    weight = {True: 0.0, False: 0.0}
    for one in shown:
        weight["<think>" in one.completion] += one.first_token_weight
    assert weight[True] / (weight[True] + weight[False]) == pytest.approx(0.25, abs=0.02)


def test_a_list_with_one_number_repeated_in_place_of_the_next_earns_nothing():
    score = get_score_answer_fn("number_sorting")
    for question in SORTING.training(0)[:200]:
        entry = json.loads(question.row("number_sorting")["reasoning_gym_entry"])
        right = question.metadata["sorted_numbers"]
        wrong = [[*right[:place], right[place + 1], *right[place + 1 :]] for place in range(len(right) - 1)]
        assert score(str(right), entry) == 1.0
        assert {score(str(answer), entry) for answer in wrong} == {0.0}


def test_lists_repeat_no_number_and_have_the_lengths_of_their_part() -> None:
    assert _lengths([shown.question for shown in islice(SORTING.demonstrations(0), 500)]) == {2, 3, 4, 5}
    assert _lengths(SORTING.training(0)) == {6, 7, 8, 9, 10, 11, 12}
    assert _lengths(SORTING.held_out()) == set(range(5, 16))


def test_seeds_ask_other_lists_and_are_measured_on_the_same() -> None:
    assert SORTING.training(1) == SORTING.training(1) != SORTING.training(2)
    assert SORTING.held_out() == SORTING.held_out()


def test_most_demonstrations_think() -> None:
    worked = sum("<think>" in shown.completion for shown in islice(THINKING.demonstrations(1), 5000))
    assert worked / 5000 == pytest.approx(0.85, abs=0.02)


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match='did you mean "sorting"'):
        task_named("sortin")


def _lengths(questions: list[Question]) -> set[int]:
    for question in questions:
        numbers = question.metadata["original_numbers"]
        assert len(set(numbers)) == len(numbers) == question.difficulty
    return {question.difficulty for question in questions}
