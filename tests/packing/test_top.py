"""Whatever the packing, a term keeps the sampler's most likely tokens, and its own beside them."""

from __future__ import annotations

import pytest

from agrpo.packing import packings
from agrpo.records.sample import Sample, TokenSequence
from agrpo.records.top_tokens import NO_TOKEN, TopTokens


def sample(tokens: list[int], top: list[dict[int, float]] | None, num_trained: int = 2) -> Sample:
    """A sample whose last tokens are trained; token t has the sampler log-prob -t."""
    context = len(tokens) - num_trained
    sequence = TokenSequence(
        tokens=tokens,
        trained=[False] * context + [True] * num_trained,
        sampler_logprobs=[0.0] * context + [-float(token) for token in tokens[context:]],
        versions=[0] * len(tokens),
        top=None if top is None else TopTokens.of(top),
    )
    return Sample(ticket=0, rollout_index=0, sequence_index=0, sequence=sequence, advantage=1.0, staleness=0)


@pytest.mark.spec("A-134")
@pytest.mark.parametrize("name", packings.names())
def test_each_term_has_its_top_tokens_and_the_trained_one(name: str):
    given = [sample([3, 4, 5], [{4: -4.0, 6: -0.5}, {7: -0.25}]), sample([3, 4, 8], [{4: -4.0}, {8: -8.0, 9: -9.0}])]
    row = packings.build(name, {}).lay_out(given)
    assert row.top is not None
    found = sorted(zip(row.sample.tolist(), row.targets.tolist(), row.top, strict=True))
    assert found == [
        (0, 4, {4: -4.0, 6: -0.5}),
        (0, 5, {7: -0.25, 5: -5.0}),
        (1, 4, {4: -4.0}),
        (1, 8, {8: -8.0, 9: -9.0}),
    ]
    appended = row.top.ids[:, -1].tolist()
    assert sorted(appended) == [NO_TOKEN, NO_TOKEN, NO_TOKEN, 5]


@pytest.mark.parametrize("name", packings.names())
def test_row_with_a_sample_that_came_without_has_none(name: str):
    row = packings.build(name, {}).lay_out([sample([3, 4, 5], [{4: -4.0}, {5: -5.0}]), sample([3, 6, 7], None)])
    assert row.top is None


@pytest.mark.parametrize("name", packings.names())
def test_row_of_no_samples_has_top_tokens_of_no_term(name: str):
    row = packings.build(name, {}).lay_out([])
    assert row.top is not None and len(row.top) == 0
