"""Samples made by hand, for tests of packing."""

from __future__ import annotations

from collections.abc import Sequence

from agrpo.records.batch import Row
from agrpo.records.sample import Sample, TokenSequence


def sample(
    tokens: Sequence[int], num_trained: int, advantage: float = 1.0, candidates: list[list[int]] | None = None
) -> Sample:
    """A sample whose last `num_trained` tokens are trained; token t has the sampler log-prob -t."""
    context = len(tokens) - num_trained
    sequence = TokenSequence(
        tokens=list(tokens),
        trained=[False] * context + [True] * num_trained,
        sampler_logprobs=[0.0] * context + [-float(token) for token in tokens[context:]],
        versions=[-1] * context + [0] * num_trained,
        candidates=candidates,
    )
    return Sample(ticket=0, rollout_index=0, sequence_index=0, sequence=sequence, advantage=advantage, staleness=0)


def of_lengths(lengths: Sequence[int]) -> list[Sample]:
    """Samples of these lengths that share nothing; the last token of each is trained, but for the first of a sample."""
    return [sample([number] * length, int(length > 1)) for number, length in enumerate(lengths)]


def history(row: Row, place: int) -> list[int]:
    """The tokens from a root to this row position."""
    tokens: list[int] = []
    while place >= 0:
        assert row.parents[place] < place
        tokens.append(int(row.tokens[place]))
        place = int(row.parents[place])
    return tokens[::-1]
