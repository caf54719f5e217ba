from __future__ import annotations

from itertools import repeat
from pathlib import Path

import pytest

from agrpo.prompts.files import Files
from agrpo.quickstart.evaluate import Evaluation, PassRate, pass_rates, reward_of
from agrpo.quickstart.model import make_model
from agrpo.quickstart.prepare import Prepared
from agrpo.quickstart.question import Demonstration
from agrpo.quickstart.tasks import sorting
from agrpo.quickstart.tokenizer import train_tokenizer
from agrpo.quickstart.warm_start import warm_start

KNOWN, UNKNOWN = sorting.question_of([4, 2], "ascending"), sorting.question_of([8, 2, 6], "ascending")


def test_a_policy_that_knows_one_answer_passes_that_question_alone(tmp_path: Path):
    _save_policy_that_always_says(KNOWN.answer, tmp_path)
    rows = [question.row("number_sorting") for question in (UNKNOWN, KNOWN)]
    evaluation = pass_rates(tmp_path, rows, max_completion_length=8, num_samples=3)
    right = PassRate(num_questions=1, greedy=1.0, sampled=1.0, any_sample=1.0)
    wrong = PassRate(num_questions=1, greedy=0.0, sampled=0.0, any_sample=0.0)
    half = PassRate(num_questions=2, greedy=0.5, sampled=0.5, any_sample=0.5)
    assert evaluation == Evaluation(num_samples=3, mean_reward=0.5, overall=half, by_difficulty={2: right, 3: wrong})
    assert list(evaluation.by_difficulty) == [2, 3]


def test_an_evaluation_repeats_with_its_seed_and_differs_with_another(prepared: Prepared):
    rows = Files(path=str(prepared.held_out))()[:20]
    rewards = [
        pass_rates(prepared.model, rows, max_completion_length=3, num_samples=40, seed=seed).mean_reward
        for seed in (1, 1, 2)
    ]
    assert rewards[0] == rewards[1] != rewards[2]


def test_only_what_follows_the_thinking_is_judged():
    row = {"reasoning_gym_dataset": "chain_sum", "reasoning_gym_entry": '{"answer": "7"}'}
    assert reward_of("<think>4+5=9;9-2=7</think>7", row) == 1.0
    assert reward_of("<think>7</think>", row) == 0.0
    # chain_sum pays a little for the answer inside another text.
    assert reward_of("17", row) == pytest.approx(0.5)


def _save_policy_that_always_says(answer: str, folder: Path) -> None:
    tokenizer = train_tokenizer([KNOWN.text, UNKNOWN.text, answer])
    model = make_model(tokenizer, seed=0, has_positions=True)
    shown = [Demonstration(question=question, completion=answer) for question in (KNOWN, UNKNOWN)]
    warm_start(model, tokenizer, (one for pair in repeat(shown) for one in pair), steps=40, num_threads=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
