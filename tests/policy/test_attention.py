from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agrpo.errors import ModelError
from agrpo.policy.attention import Layout, layout, packed_attention
from agrpo.policy.attention.layout import MOST_PADDING, MOST_QUERIES, Batch

SPEC_EXAMPLE = [-1, 0, 1, 2, 3, 1, 5, 6]
"""p1 p2, then p3 a1 a2 and p3 b1 b2 below it."""


def visible(parents: np.ndarray, window: int | None = None) -> torch.Tensor:
    """Which keys each query sees, bool `[T, T]`: the oracle, by walking up."""
    seen = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for query in range(len(parents)):
        key, distance = query, 0
        while key >= 0 and (window is None or distance < window):
            seen[query, key] = True
            key, distance = parents[key], distance + 1
    return seen


def dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, softcap: float | None):
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) / query.shape[-1] ** 0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value.repeat_interleave(groups, 1)).transpose(1, 2)


@st.composite
def forests(draw: st.DrawFn) -> np.ndarray:
    """Parents of a random forest in depth-first order: each token continues the last one, or some ancestor of it."""
    parents: list[int] = []
    for place in range(draw(st.integers(1, 40))):
        path, node = [], place - 1
        while node >= 0:
            path.append(node)
            node = parents[node]
        parents.append(draw(st.sampled_from([*path[:1] * 6, *path, -1])))
    return np.array(parents)


def states(length: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, heads, length, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]


@pytest.mark.spec("A-146")
@settings(max_examples=60, deadline=None)
@given(forests(), st.sampled_from([None, 1, 3]), st.sampled_from([None, 0.5]), st.sampled_from([2, MOST_QUERIES]))
def test_each_query_sees_its_own_path_within_the_window(
    parents: np.ndarray, window: int | None, softcap: float | None, most_queries: int
):
    given_states = states(len(parents))
    cotangent = torch.randn(1, len(parents), 4, 8, dtype=torch.float64)
    expected = dense(*given_states, visible(parents, window), softcap)
    with patch.object(layout, "MOST_QUERIES", most_queries):
        found, _ = packed_attention(
            torch.nn.Identity(),
            *given_states,
            None,
            packed_layout=Layout(parents),
            sliding_window=window,
            softcap=softcap,
        )
    assert torch.allclose(found, expected, atol=1e-12)
    gradients = torch.autograd.grad((found * cotangent).sum(), given_states)
    for gradient, wanted in zip(
        gradients, torch.autograd.grad((expected * cotangent).sum(), given_states), strict=True
    ):
        assert torch.allclose(gradient, wanted, atol=1e-12)


def test_mask_of_a_row_is_two_comparisons_with_the_end_of_each_subtree():
    parents = np.array(SPEC_EXAMPLE)
    ends = torch.tensor([8, 8, 5, 5, 5, 8, 8, 8])
    place = torch.arange(8)
    expected = (place[None] <= place[:, None]) & (place[:, None] < ends[None])
    assert torch.equal(visible(parents), expected)


@pytest.mark.spec("A-150", "A-155")
def test_segments_of_the_specified_example_read_the_specified_keys():
    lengths = Layout(np.array(SPEC_EXAMPLE)).lengths
    assert lengths.keys is not None
    assert lengths.queries_until.tolist() == [0, 2, 5, 8]
    assert lengths.keys_until.tolist() == [0, 2, 7, 12]
    assert lengths.keys.tolist() == [0, 1, *(0, 1, 2, 3, 4), *(0, 1, 5, 6, 7)]
    assert (lengths.longest_segment, lengths.longest_path) == (3, 5)


def test_siblings_of_one_length_are_one_call_without_moving_a_query():
    plan = Layout(np.array(SPEC_EXAMPLE)).plan
    assert plan.batches == [Batch(1, 2, 0), Batch(2, 3, 2)]
    assert plan.queries is None and plan.outputs is None


def test_siblings_of_nearly_one_length_are_padded_into_one_call():
    plan = Layout(np.array([-1, 0, 1, 2, 1, 4, 5])).plan
    assert plan.batches == [Batch(1, 2, 0), Batch(2, 3, 2)]
    assert plan.queries is not None and plan.outputs is not None
    assert plan.queries.tolist() == [0, 1, *(2, 3, 3), *(4, 5, 6)]
    assert plan.outputs.tolist() == [0, 1, 2, 3, 5, 6, 7]


def test_siblings_of_very_different_lengths_are_calls_of_their_own():
    long = int(MOST_PADDING**0.5) + 2
    parents = np.array([-1, 0, *range(1, long), 0])
    assert Layout(parents).plan.batches == [Batch(1, 1, 0), Batch(1, long, 1), Batch(1, 1, 1)]


@pytest.mark.spec("A-154")
def test_whole_samples_are_read_in_place_and_equal_lengths_side_by_side_in_one_call():
    samples = Layout(np.array([-1, 0, -1, 2, -1, 4, 5, -1, 7]))
    assert samples.plan.batches == [Batch(2, 2, 0), Batch(1, 3, 0), Batch(1, 2, 0)]
    assert samples.plan.queries is None and samples.plan.keys is None and samples.plan.outputs is None
    assert samples.lengths.keys is None


@pytest.mark.parametrize(("window", "keys"), [(1024, 1024), (None, 6000)])
def test_a_band_grows_with_the_keys_of_a_long_segment_alone(window: int | None, keys: int):
    """A prompt of 2,000 tokens, and two completions of 4,000."""
    prompt, completion = list(range(-1, 1999)), list(range(2000, 5999))
    forked = Layout(np.array([*prompt, 1999, *completion, 1999, *(4000 + place for place in completion)]))
    bands = [
        band
        for batch in forked.plan.batches
        for block in forked.blocks(batch, window)
        if (band := forked.band(block.shape, window, torch.float32)) is not None
    ]
    assert max(band.untyped_storage().nbytes() for band in bands) <= 4 * MOST_QUERIES * (keys + MOST_QUERIES)


@pytest.mark.parametrize("parents", [[], [0], [-1, 1], [-2], [-1, 0, 0, 1]])
def test_parents_that_are_no_forest_in_depth_first_order_are_refused(parents: list[int]):
    with pytest.raises(ModelError, match=r"depth-first order.*packing\.name"):
        Layout(np.array(parents, np.int64))


@pytest.mark.spec("A-017")
@pytest.mark.parametrize(("name", "what"), [("s_aux", "sinks"), ("position_bias", "bias")])
def test_scores_that_would_be_computed_otherwise_are_refused(name: str, what: str):
    given_states = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ModelError, match=rf"Identity has .*{what}.*\({name}\)"):
        packed_attention(
            torch.nn.Identity(), *[given_states] * 3, None, packed_layout=Layout(np.array([-1, 0, 1])), **{name: 1.0}
        )
