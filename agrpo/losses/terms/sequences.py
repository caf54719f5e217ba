"""Sums over the tokens of each sample. A sample lies whole in one micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from agrpo.records.tokens import TokenInputs


def sum_over_sample(values: Tensor, tokens: TokenInputs) -> Tensor:
    """`[N]`: for each token, the sum of `values` `[N]` over its sample."""
    sums = values.new_zeros(tokens.num_samples).index_add(0, tokens.sample, values)
    return sums[tokens.sample]


def mean_over_sample(values: Tensor, tokens: TokenInputs) -> Tensor:
    """`[N]`: for each token, the mean of `values` `[N]` over its sample."""
    lengths = tokens.sample.bincount(minlength=tokens.num_samples)
    return sum_over_sample(values, tokens) / lengths[tokens.sample]
