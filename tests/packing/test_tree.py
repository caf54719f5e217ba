"""A row as a trie: what it holds, against a trie built naively."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agrpo.packing.sequence import Sequence
from agrpo.packing.tree import Tree
from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from tests.packing.made import history, sample

MANY = settings(deadline=None, max_examples=150, derandomize=True)
PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9)
"""Three tokens alone: forks at every depth, several roots, equal samples, prefixes of one another."""


def trained_from(paths: list[list[int]]) -> list[Sample]:
    return [sample(path, len(path) // 2, advantage=float(number)) for number, path in enumerate(paths)]


def prefixes(paths: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}


@pytest.mark.spec("A-148", "A-149", "A-150", "A-151")
def test_two_rollouts_of_a_prompt_fork_where_they_part():
    p1, p2, p3, a1, a2, b1, b2 = range(11, 18)
    row = Tree().lay_out([sample([p1, p2, p3, a1, a2], 2, 0.5), sample([p1, p2, p3, b1, b2], 2, -0.5)])
    assert row.tokens.tolist() == [p1, p2, p3, a1, a2, b1, b2]
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 3, 4]
    assert row.parents.tolist() == [-1, 0, 1, 2, 3, 2, 5]
    assert row.index.tolist() == [2, 3, 2, 5]
    assert row.targets.tolist() == [a1, a2, b1, b2]
    assert row.sample.tolist() == [0, 0, 1, 1]
    assert row.advantages.tolist() == [0.5, 0.5, -0.5, -0.5]
    assert row.sampler_logprobs.tolist() == [-14.0, -15.0, -16.0, -17.0]
    assert (row.num_tokens, row.num_samples, row.candidates) == (7, 2, None)


@pytest.mark.spec("A-145")
@MANY
@given(PATHS)
def test_row_holds_every_prefix_once(paths: list[list[int]]):
    row = Tree().lay_out(trained_from(paths))
    found = [tuple(history(row, place)) for place in range(row.num_tokens)]
    assert len(set(found)) == len(found)
    assert set(found) == prefixes(paths)


@MANY
@given(PATHS)
def test_row_is_in_pre_order_and_positions_are_depths(paths: list[list[int]]):
    row = Tree().lay_out(trained_from(paths))
    open_path: list[int] = []
    for place, parent in enumerate(row.parents.tolist()):
        while open_path and open_path[-1] != parent:
            open_path.pop()
        assert parent == (open_path[-1] if open_path else -1)
        assert row.positions[place] == len(open_path)
        open_path.append(place)


@pytest.mark.spec("A-146", "A-147", "A-152")
@MANY
@given(PATHS)
def test_every_trained_token_of_every_sample_is_a_term_of_its_own(paths: list[list[int]]):
    given_samples = trained_from(paths)
    row = Tree().lay_out(given_samples)
    expected = [
        (number, path[:end], path[end], float(number), -float(path[end]))
        for number, path in enumerate(paths)
        for end in range(len(path) - len(path) // 2, len(path))
    ]
    found = [
        (int(owner), history(row, int(index)), int(target), float(advantage), float(logprob))
        for owner, index, target, advantage, logprob in zip(
            row.sample, row.index, row.targets, row.advantages, row.sampler_logprobs, strict=True
        )
    ]
    assert found == expected
    assert row.num_samples == len(paths)


@pytest.mark.spec("A-153")
def test_system_prompt_is_shared_by_the_prompts_of_several_groups():
    system = [1, 2, 3, 4]
    groups = [[*system, prompt, 9, answer] for prompt in (5, 6) for answer in (7, 8)]
    row = Tree().lay_out([sample(path, 1) for path in groups])
    assert row.tokens.tolist() == [1, 2, 3, 4, 5, 9, 7, 8, 6, 9, 7, 8]
    assert row.parents.tolist() == [-1, 0, 1, 2, 3, 4, 5, 5, 3, 8, 9, 9]


def test_duplicates_and_prefixes_take_no_further_token():
    row = Tree().lay_out([sample([1, 2, 3], 2), sample([1, 2], 1), sample([1, 2, 3], 2)])
    assert row.tokens.tolist() == [1, 2, 3]
    assert row.index.tolist() == [0, 1, 0, 0, 1]
    assert row.sample.tolist() == [0, 0, 1, 2, 2]


def test_ids_beyond_one_byte_are_ordered_as_numbers():
    row = Tree().lay_out([sample([256, 1], 1), sample([2, 1], 1), sample([256, 70000], 1)])
    assert row.tokens.tolist() == [2, 1, 256, 1, 70000]
    assert row.sample.tolist() == [0, 1, 2]


@pytest.mark.spec("A-154")
def test_samples_that_share_nothing_lie_one_after_another():
    alone = [sample([1, 2, 3], 1), sample([2, 2], 1), sample([3, 1, 1, 1], 2)]
    tree, sequence = Tree().lay_out(alone), Sequence().lay_out(alone)
    for name in ("tokens", "positions", "parents", "index", "targets", "sample"):
        assert getattr(tree, name).tolist() == getattr(sequence, name).tolist()


@pytest.mark.parametrize("packing", [Tree(), Sequence()])
def test_row_of_no_sample_is_a_token_without_a_term(packing: Tree | Sequence):
    row = packing.lay_out([])
    assert (row.num_tokens, row.num_trained, row.num_samples) == (1, 0, 0)
    assert (row.positions.tolist(), row.parents.tolist()) == ([0], [-1])


def gathered(row: Row) -> int:
    """Keys that attention gathers, counted on the row: the path's length at the end of every segment."""
    parents = row.parents.tolist()
    children = [parents.count(place) for place in range(row.num_tokens)]
    ends = [place for place, count in enumerate(children) if count != 1]
    return sum(int(row.positions[place]) + 1 for place in ends)


@pytest.mark.spec("A-160")
@MANY
@given(PATHS, st.integers(9, 30), st.integers(1, 4), st.sampled_from([1.0, 1.5, 8.0]))
def test_rows_keep_their_three_bounds(paths: list[list[int]], micro_tokens: int, ranks: int, factor: float):
    samples = trained_from(paths)
    packing = Tree(max_gathered=factor)
    placed = packing.place(samples, micro_tokens, ranks)
    assert sorted(number for row in placed for number in row) == list(range(len(paths)))
    for numbers in placed:
        row = packing.lay_out([samples[number] for number in numbers])
        assert row.num_tokens <= micro_tokens
        assert row.num_trained <= micro_tokens
        assert gathered(row) <= factor * micro_tokens


def test_row_of_equal_samples_is_bounded_by_its_terms():
    equal = [sample([1, 2, 3, 4], 3) for _ in range(6)]
    assert [len(row) for row in Tree().place(equal, 9)] == [3, 3]


def test_row_of_deep_branches_is_bounded_by_what_attention_gathers():
    prompt = list(range(8))
    branches = [sample([*prompt, 10 + number], 1) for number in range(8)]
    assert len(Tree(max_gathered=8.0).place(branches, 16)) == 1
    rows = Tree(max_gathered=3.0).place(branches, 16)
    assert [len(row) for row in rows] == [4, 4]
    assert gathered(Tree().lay_out([branches[number] for number in rows[0]])) == 8 + 4 * 9 <= 48


def test_row_that_begins_below_a_fork_gathers_the_way_to_it_too():
    prompt = list(range(8))
    branches = [sample([*prompt, 10 + number], 1) for number in range(9)]
    rows = Tree(max_gathered=3.0).place(branches, 16)
    # Four branches gather 8 + 4 * 9 keys, five would gather 53, of which a row may gather 48.
    assert [len(row) for row in rows] == [3, 3, 3]


def test_sample_longer_than_a_row_is_a_broken_invariant():
    with pytest.raises(AssertionError, match="11 tokens, a row holds 10"):
        Tree().place([sample([1] * 11, 1)], 10)


@MANY
@given(PATHS, st.randoms(use_true_random=False))
def test_placement_does_not_depend_on_the_order_of_the_samples(paths: list[list[int]], random):
    shuffled = random.sample(paths, len(paths))
    rows, other = (
        [sorted(given_paths[number] for number in row) for row in Tree().place(trained_from(given_paths), 14, 2)]
        for given_paths in (paths, shuffled)
    )
    assert rows == other


def test_nothing_to_place_gives_no_row():
    assert Tree().place([], 10) == []


def test_neighbours_of_a_row_share_what_the_trie_says():
    paths = [[1, 2, 3], [1, 2, 4], [5]]
    assert all(one < other for one, other in pairwise(sorted(paths)))
    assert Tree().place(trained_from(paths), 10) == [[0, 1, 2]]
