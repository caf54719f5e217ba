"""Top tokens read as the list of dictionaries they were made of, and gain the sampled token where it was not among them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agrpo.records.arrow import group_from_arrow, group_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, TurnRecord
from agrpo.records.sample import sequences_of
from agrpo.records.top_tokens import NO_TOKEN, TopTokens

PLACES = [{5: -0.5, 7: -1.5}, {1: -0.25}, {}]


def turn(prompt: list[int], output: list[int], top: list[dict[int, float]] | None, mask: list[int] | None = None):
    logprobs = [-1.0] * len(output)
    return TurnRecord(
        prompt_ids=prompt,
        output_ids=output,
        output_log_probs=logprobs,
        output_mask=mask,
        output_sampler_logprobs=top,
    )


def sequences(*turns: TurnRecord):
    return sequences_of(Rollout(completion=[], completion_ids=[], turns=list(turns)))


def test_places_read_as_the_dictionaries_they_were():
    top = TopTokens.of(PLACES)
    assert top == PLACES and PLACES == top and top != PLACES[:2]
    assert top.ids.tolist() == [[5, 7], [1, NO_TOKEN], [NO_TOKEN, NO_TOKEN]]
    assert top.logprobs.tolist() == [[-0.5, -1.5], [-0.25, -math.inf], [-math.inf, -math.inf]]
    assert top[1:] == PLACES[1:] and top.counts.tolist() == [2, 1, 0]


def test_a_token_of_probability_zero_is_no_filler():
    assert TopTokens.of([{3: -math.inf}])[0] == {3: -math.inf}


def test_sampled_token_is_appended_where_it_is_not_among_them():
    top = TopTokens.of(PLACES).with_sampled(np.array([7, 2, 9]), np.array([-1.5, -3.0, -0.125]))
    assert top.ids[:, -1].tolist() == [NO_TOKEN, 2, 9]
    assert list(top) == [{5: -0.5, 7: -1.5}, {1: -0.25, 2: -3.0}, {9: -0.125}]


def test_parts_of_other_widths_are_joined():
    joined = TopTokens.joined([TopTokens.of([{1: -1.0}]), TopTokens.of(PLACES)])
    assert list(joined) == [{1: -1.0}, *PLACES]
    assert TopTokens.joined([]).with_sampled(np.zeros(0, int), np.zeros(0)).ids.shape == (0, 1)


@pytest.mark.spec("A-231")
def test_sequence_keeps_the_top_tokens_of_trained_tokens_alone():
    first = turn([7], [1, 2, 9], [{1: -1.0}, {2: -2.0}, {9: -3.0}], mask=[1, 0, 1])
    (sequence,) = sequences(first, turn([7, 1, 2, 9, 5], [3], [{3: -0.5, 4: -0.75}]))
    assert sequence.num_trained == 3
    assert list(sequence.top) == [{1: -1.0}, {9: -3.0}, {3: -0.5, 4: -0.75}]


def test_sequence_without_top_tokens_of_every_turn_has_none():
    (sequence,) = sequences(turn([7], [1], [{1: -1.0}]), turn([7, 1, 5], [3], None))
    assert sequence.top is None
    (masked,) = sequences(turn([7], [1], [{1: -1.0}]), turn([7, 1, 5], [3], None, mask=[0]))
    assert list(masked.top) == [{1: -1.0}]


def test_first_token_of_an_empty_prompt_is_not_trained_and_has_no_place():
    (sequence,) = sequences(turn([], [1, 2], [{1: -1.0}, {2: -2.0}]))
    assert sequence.num_trained == 1 and list(sequence.top) == [{2: -2.0}]


def test_turn_with_too_few_places_is_refused():
    with pytest.raises(ValueError, match="2 output tokens and the sampler's most likely tokens at 1 places"):
        sequences(turn([7], [1, 2], [{1: -1.0}]))


def test_most_likely_tokens_come_back_from_arrow_as_arrays():
    turns = [turn([7], [1, 2, 9], PLACES), turn([7], [4], None), turn([8], [5], [{5: -math.inf}])]
    rollouts = [
        Rollout(completion=[], completion_ids=[], turns=turns),
        Rollout(completion=[], completion_ids=[], turns=[]),
    ]
    group = RolloutGroup(ticket=0, prompt=Prompt(id="p", messages=[]), rollouts=rollouts, model_version=0)
    found = group_from_arrow(group_to_arrow(group))
    assert found == group
    tops = [own.output_sampler_logprobs for own in found.rollouts[0].turns]
    assert [None if top is None else type(top) for top in tops] == [TopTokens, None, TopTokens]
