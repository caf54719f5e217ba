from __future__ import annotations

import pytest

from agrpo.packing.sequence import Sequence
from tests.packing.made import of_lengths, sample


def test_longest_samples_are_placed_first_each_in_the_row_that_costs_least():
    assert Sequence().place(of_lengths([3, 7, 5, 3, 2]), 10) == [[1, 3], [2, 0, 4]]


def test_equal_lengths_lie_side_by_side_in_their_order():
    assert Sequence().place(of_lengths([4, 6, 4, 6, 4]), 24) == [[1, 3, 0, 2, 4]]


def test_row_is_added_where_the_fewest_do_not_hold_the_samples():
    assert Sequence().place(of_lengths([6, 6, 6]), 10) == [[0], [1], [2]]


def test_nothing_to_place_gives_no_row():
    assert Sequence().place([], 10) == []


def test_sample_longer_than_a_row_is_a_broken_invariant():
    with pytest.raises(AssertionError, match="sample 1 has 11 tokens, a row holds 10"):
        Sequence().place(of_lengths([3, 11]), 10)


@pytest.mark.spec("A-154")
def test_samples_are_laid_out_one_after_another():
    row = Sequence().lay_out([sample([5, 6, 7], 2, 0.5), sample([8, 9, 10, 11], 1, -1.0)])
    assert row.tokens.tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert row.positions.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert row.parents.tolist() == [-1, 0, 1, -1, 3, 4, 5]
    assert row.index.tolist() == [0, 1, 5]
    assert row.targets.tolist() == [6, 7, 11]
    assert row.sample.tolist() == [0, 0, 1]
    assert row.sampler_logprobs.tolist() == [-6.0, -7.0, -11.0]
    assert row.advantages.tolist() == [0.5, 0.5, -1.0]
    assert (row.num_samples, row.num_tokens, row.num_trained, row.candidates) == (2, 7, 3, None)


def test_candidates_are_kept_for_trained_tokens_and_empty_for_an_untruncated_sample():
    truncated = sample([5, 6, 7], 2, 0.5, candidates=[[], [6, 1], [7]])
    assert Sequence().lay_out([truncated, sample([8, 9], 1, 1.0)]).candidates == [[6, 1], [7], []]


def test_sample_without_a_trained_token_is_forwarded_and_counted():
    row = Sequence().lay_out([sample([5, 6], 0, 1.0), sample([7, 8], 1, 1.0)])
    assert (row.num_tokens, row.num_samples, row.sample.tolist()) == (4, 2, [1])
