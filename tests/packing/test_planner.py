"""Rows over the processes of a learner: none without a row, none much costlier than another, nothing split for nothing."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agrpo.packing import Packing, packings
from agrpo.packing.tree import Tree
from agrpo.records.sample import Sample
from tests.packing.made import of_lengths, sample

EACH = pytest.mark.parametrize("name", packings.names())


def group(prompt: int, num_prompt_tokens: int, lengths: list[int]) -> list[Sample]:
    """Rollouts of one prompt; each begins with a token of its own."""
    return [
        sample([prompt] * num_prompt_tokens + [1000 * prompt + number] * length, length)
        for number, length in enumerate(lengths)
    ]


def costs_of(packing: Packing, samples: list[Sample], rows: list[list[int]]) -> list[int]:
    laid = [packing.lay_out([samples[number] for number in row]) for row in rows]
    return [int((row.positions + 1).sum()) for row in laid]


@EACH
@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(1, 20), max_size=30), st.integers(20, 60), st.integers(1, 5))
def test_every_rank_has_a_row_in_every_micro_batch(name: str, lengths: list[int], micro_tokens: int, ranks: int):
    rows = packings.build(name, {}).place(of_lengths(lengths), micro_tokens, ranks)
    assert len(rows) % ranks == 0
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert sum(1 for row in rows if not row) == max(0, len(rows) - len(lengths))


@EACH
def test_fewer_samples_than_ranks_leave_the_last_ranks_without(name: str):
    assert packings.build(name, {}).place(of_lengths([3, 5]), 8, 4) == [[1], [0], [], []]


@pytest.mark.spec("A-157")
def test_samples_of_a_group_share_a_row_while_it_has_room():
    samples = [one for prompt in range(1, 6) for one in group(prompt, 30, [10, 10, 10, 10])]
    rows = Tree().place(samples, 150)
    assert sorted(rows) == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18, 19]]


@pytest.mark.spec("A-158")
def test_group_goes_on_in_another_row_where_its_row_is_full_or_a_process_has_none():
    samples = group(1, 10, [10] * 6)
    assert [len(row) for row in Tree().place(samples, 40)] == [3, 3]
    assert [len(row) for row in Tree().place(samples, 400)] == [6]
    assert [len(row) for row in Tree().place(samples, 400, ranks=3)] == [2, 2, 2]


@pytest.mark.spec("A-159", "A-165")
@EACH
@pytest.mark.parametrize(("ranks", "micro_tokens"), [(2, 4096), (4, 1024), (8, 100_000)])
def test_rows_over_ranks_cost_about_the_same(name: str, ranks: int, micro_tokens: int):
    draw = np.random.default_rng(ranks)
    samples = [one for prompt in range(1, 33) for one in group(prompt, 40, draw.integers(20, 120, 8).tolist())]
    packing = packings.build(name, {})
    rows = packing.place(samples, micro_tokens, ranks)
    costs = costs_of(packing, samples, rows)
    assert len(rows) % ranks == 0 and all(rows)
    assert max(costs) / np.mean(costs) < 1.15
    waited_for = sum(max(costs[first : first + ranks]) for first in range(0, len(costs), ranks))
    assert waited_for * ranks < 1.1 * sum(costs)


@EACH
def test_rows_of_one_process_cost_about_the_same(name: str):
    samples = [one for prompt in range(1, 11) for one in group(prompt, 100, [50] * 8)]
    packing = packings.build(name, {})
    costs = costs_of(packing, samples, packing.place(samples, 2000))
    assert len(costs) > 1 and max(costs) / np.mean(costs) <= 1.25


@settings(deadline=None, max_examples=80, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=2, max_size=7), st.integers(2, 3))
def test_no_partition_of_the_line_has_a_much_cheaper_costliest_row(paths: list[list[int]], ranks: int):
    samples = [sample(path, 1 if len(path) > 1 else 0) for path in sorted(paths)]
    rows = Tree().place(samples, 10_000, ranks)
    num_rows = min(len(rows), len(samples))
    partitions = [
        [list(range(start, end)) for start, end in pairwise((0, *cuts, len(samples)))]
        for cuts in combinations(range(1, len(samples)), num_rows - 1)
    ]
    best = min(max(costs_of(Tree(), samples, partition)) for partition in partitions)
    assert max(costs_of(Tree(), samples, rows)) <= 1.05 * best


def test_whole_groups_are_worth_a_row_more_where_prompts_are_long():
    samples = [one for prompt in range(1, 11) for one in group(prompt, 2000, [300] * 8)]
    rows = Tree().place(samples, 16384)
    laid = [Tree().lay_out([samples[number] for number in row]) for row in rows]
    assert [row.num_samples for row in laid] == [24, 24, 16, 16]
    assert sum(row.num_tokens for row in laid) == 10 * (2000 + 8 * 300)


def test_costliest_rows_come_first_and_side_by_side():
    samples = of_lengths([9, 1, 8, 2, 10, 3])
    costs = costs_of(Tree(), samples, Tree().place(samples, 10, ranks=2))
    assert costs == sorted(costs, reverse=True)
