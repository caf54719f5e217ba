from __future__ import annotations

import numpy as np
import pytest

from agrpo.records.batch import Row
from agrpo.stages.execution import TokensOf


def row_of(owners: list[int], num_samples: int) -> Row:
    """A row whose trained tokens belong to these samples; the rest of it is not looked at."""
    none = np.zeros(0)
    return Row(
        tokens=none,
        positions=none,
        parents=none,
        index=none,
        targets=none,
        sample=np.array(owners),
        sampler_logprobs=none,
        advantages=none,
        num_samples=num_samples,
    )


def test_tokens_are_told_by_sample_wherever_a_row_has_them():
    tokens = TokensOf(row_of([1, 0, 1, 2, 1], 3))
    values = np.array([4.0, 1.0, 5.0, -2.0, 9.0], np.float32)
    assert tokens.mean(values) == [1.0, 6.0, -2.0]
    assert tokens.each(np.minimum, values) == [1.0, 4.0, -2.0]
    assert tokens.each(np.maximum, values) == [1.0, 9.0, -2.0]
    assert [part.tolist() for part in tokens.split(values)] == [[1.0], [4.0, 5.0, 9.0], [-2.0]]


def test_shares_are_means_of_what_holds_of_a_token():
    assert TokensOf(row_of([0, 0, 0, 0, 1], 2)).mean(np.array([True, False, False, False, True])) == [0.25, 1.0]


def test_a_sample_without_a_trained_token_is_no_sample_of_a_row():
    with pytest.raises(AssertionError, match="without a trained token"):
        TokensOf(row_of([0, 2], 3))
