"""Tokens turn by turn: which training sequence they are in, and which value of the learner is theirs."""

from __future__ import annotations

import math

import pytest

from agrpo.instruments.rollout_page.facts import SampleFacts, TurnFacts
from agrpo.instruments.rollout_page.pieces import NoPieces
from agrpo.instruments.rollout_page.tokens import turn_rows, turns_of
from agrpo.records.rollout import TurnRecord

NO_TEXT = NoPieces("no tokenizer in this test")


def a_turn(prompt: list[int], output: list[int], mask: list[int] | None = None, version: int = 0) -> TurnRecord:
    return TurnRecord(
        prompt_ids=prompt,
        output_ids=output,
        output_log_probs=[-0.5] * len(output),
        output_mask=mask,
        output_versions=[version] * len(output),
    )


def a_sample(sequence: int, log_probs: list[float] | None, step: int = 1, advantage: float = 1.0) -> SampleFacts:
    numbers = dict.fromkeys(SampleFacts.__slots__)
    given = {
        "attempt": 0,
        "step": step,
        "sequence_index": sequence,
        "advantage": advantage,
        "log_probs": log_probs,
        "entropies": None if log_probs is None else [0.1 * (place + 1) for place, _ in enumerate(log_probs)],
    }
    return SampleFacts(**{**numbers, **given})


def learners(turns: list[TurnFacts]) -> list[list[float | None]]:
    return [[token.learner_logprob for token in turn.tokens] for turn in turns]


def test_a_turn_that_continues_the_one_before_is_in_its_sequence_and_shows_only_its_new_context():
    turns = [a_turn([7, 8], [5, 1]), a_turn([7, 8, 5, 1, 30, 31, 32], [6, 1])]
    first, second = turns_of(turns, [a_sample(0, [-1.0, -2.0, -3.0, -4.0])], NO_TEXT)
    assert (first.sequence_index, second.sequence_index, second.forked, second.kept_tokens) == (0, 0, False, 4)
    assert (first.context, [token.token_id for token in second.context]) == ([], [30, 31, 32])
    assert learners([first, second]) == [[-1.0, -2.0], [-3.0, -4.0]]
    assert [token.entropy for token in second.tokens] == pytest.approx([0.3, 0.4])


def test_a_turn_that_continues_nothing_begins_a_sequence_with_an_advantage_of_its_own():
    turns = [a_turn([7, 8], [5, 1]), a_turn([7, 8, 5, 2, 30], [6, 1], version=3)]
    samples = [a_sample(0, [-1.0, -2.0], advantage=0.5), a_sample(1, [-3.0, -4.0], advantage=-0.5)]
    first, second = turns_of(turns, samples, NO_TEXT)
    assert (second.sequence_index, second.forked, second.kept_tokens) == (1, True, 3)
    assert [token.token_id for token in second.context] == [2, 30]
    assert learners([first, second]) == [[-1.0, -2.0], [-3.0, -4.0]]
    assert [token.advantage for token in (*first.tokens, *second.tokens)] == [0.5, 0.5, -0.5, -0.5]
    assert [token.version for token in second.tokens] == [3, 3]


def test_context_within_an_output_takes_no_value_of_the_learner():
    (turn,) = turns_of([a_turn([7], [5, 6, 1], mask=[1, 0, 1])], [a_sample(0, [-1.0, -2.0])], NO_TEXT)
    assert [token.trained for token in turn.tokens] == [True, False, True]
    assert learners([turn]) == [[-1.0, None, -2.0]]
    assert [token.advantage for token in turn.tokens] == [1.0, None, 1.0]


def test_the_first_token_of_a_sequence_without_a_prompt_is_never_trained():
    (turn,) = turns_of([a_turn([], [5, 6])], [a_sample(0, [-2.0])], NO_TEXT)
    assert learners([turn]) == [[None, -2.0]]


def test_the_ratio_is_of_the_learner_to_the_sampler():
    (turn,) = turns_of([a_turn([7], [5, 1])], [a_sample(0, [-0.5 + math.log(2), -0.5 - 30])], NO_TEXT)
    assert [token.ratio for token in turn.tokens] == pytest.approx([2.0, math.exp(-20)])


def test_values_of_the_first_step_are_shown_where_two_steps_trained_the_rollout():
    samples = [a_sample(0, [-1.0], step=1), a_sample(0, [-9.0], step=2)]
    assert learners(turns_of([a_turn([7], [1])], samples, NO_TEXT)) == [[-1.0]]


def test_values_that_are_not_as_many_as_the_trained_tokens_are_left_out():
    assert learners(turns_of([a_turn([7], [5, 1])], [a_sample(0, [-1.0])], NO_TEXT)) == [[None, None]]


def test_a_turn_without_log_probs_is_context_and_the_likely_tokens_come_most_likely_first():
    row = {
        "stop_reason": "stop",
        "prompt_ids": [7],
        "output_ids": [5, 1],
        "output_log_probs": [],
        "output_mask": None,
        "output_versions": [],
        "top_ids": [[4, 5], [1, 2]],
        "top_logprobs": [[-2.0, -0.5], [-0.1, -3.0]],
    }
    (turn,) = turns_of(turn_rows([row]), [], NO_TEXT)
    assert [(token.trained, token.version, token.sampler_logprob) for token in turn.tokens] == [(False, None, None)] * 2
    assert [[one.token_id for one in token.alternatives or []] for token in turn.tokens] == [[5, 4], [1, 2]]
