from __future__ import annotations

import numpy as np
import pytest
import torch

from agrpo.errors import ModelError
from agrpo.policy.attention import Run, packed_attention, runs_of


def test_equal_lengths_side_by_side_are_one_run():
    parents = np.array([-1, 0, -1, 2, -1, 4, 5, -1, 7])
    assert runs_of(parents) == [Run(2, 2), Run(1, 3), Run(1, 2)]


def test_one_sample_is_one_run():
    assert runs_of(np.array([-1, 0, 1])) == [Run(1, 3)]


@pytest.mark.parametrize("parents", [[-1, 0, 0], [-1, 0, -1, 1]])
def test_row_whose_samples_share_tokens_is_refused(parents: list[int]):
    with pytest.raises(ModelError, match=r"share tokens.*packing\.name"):
        runs_of(np.array(parents))


@pytest.mark.spec("A-146")
@pytest.mark.parametrize("window", [None, 3])
def test_each_query_sees_its_own_sample_up_to_itself_within_the_window(window: int | None):
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 9, 8, dtype=torch.float64) for heads in (4, 2, 2))
    runs = [Run(1, 5), Run(2, 2)]
    sample, depth = torch.tensor([0] * 5 + [1] * 2 + [2] * 2), torch.tensor([0, 1, 2, 3, 4, 0, 1, 0, 1])
    distance = depth[:, None] - depth[None, :]
    seen = (sample[:, None] == sample[None, :]) & (distance >= 0) & (distance < (window or 99))
    scores = query @ key.repeat_interleave(2, 1).transpose(2, 3) / 8**0.5
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value.repeat_interleave(2, 1)
    found, _ = packed_attention(torch.nn.Identity(), query, key, value, None, packed_runs=runs, sliding_window=window)
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-12)


@pytest.mark.spec("A-017", "A-021")
@pytest.mark.parametrize(("name", "what"), [("softcap", "capped"), ("s_aux", "sinks"), ("position_bias", "bias")])
def test_scores_that_would_be_computed_otherwise_are_refused(name: str, what: str):
    states = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ModelError, match=rf"Identity has .*{what}.*\({name}\)"):
        packed_attention(torch.nn.Identity(), states, states, states, None, packed_runs=[Run(1, 3)], **{name: 1.0})
