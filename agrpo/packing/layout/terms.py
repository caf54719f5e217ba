"""The loss terms of a row: whatever the layout, every trained token of every sample is one term."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import chain

import numpy as np

from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.records.top_tokens import TopTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the tokens of some samples lie in a row of `T` tokens."""

    tokens: np.ndarray
    """int64 `[T]`."""
    positions: np.ndarray
    """int64 `[T]`, as in `Row`."""
    parents: np.ndarray
    """int64 `[T]`, as in `Row`."""
    places: np.ndarray
    """int64: row position of every token of every sample, sample after sample. Samples may share positions."""


def tokens_of(samples: Several[Sample]) -> np.ndarray:
    """int64: the tokens of every sample, sample after sample."""
    return _flat((sample.sequence.tokens for sample in samples), np.int64)


def row_of(samples: Several[Sample], layout: Layout) -> Row:
    """The row: one term per trained token and sample, sample after sample, each predicted where the token before lies."""
    if not samples:
        return _empty_row()
    sequences = [sample.sequence for sample in samples]
    lengths = np.array([len(sequence.tokens) for sequence in sequences], np.int64)
    trained = _flat((sequence.trained for sequence in sequences), np.bool_)
    assert not trained[np.cumsum(lengths) - lengths].any(), "a sample's first token is trained, but nothing predicts it"
    terms = np.flatnonzero(trained)
    owner = np.repeat(np.arange(len(samples)), lengths)[terms]
    targets = layout.tokens[layout.places[terms]]
    sampler_logprobs = _flat((sequence.sampler_logprobs for sequence in sequences), np.float32)[terms]
    top = _top(samples)
    return Row(
        tokens=layout.tokens,
        positions=layout.positions,
        parents=layout.parents,
        index=layout.places[terms - 1],
        targets=targets,
        sample=owner,
        sampler_logprobs=sampler_logprobs,
        advantages=np.array([sample.advantage for sample in samples], np.float32)[owner],
        num_samples=len(samples),
        candidates=_candidates(samples),
        top=None if top is None else top.with_sampled(targets, sampler_logprobs),
    )


def _empty_row() -> Row:
    """One token without a term: what a process forwards where there are fewer samples than processes."""
    none = np.zeros(0, np.int64)
    return Row(
        tokens=np.zeros(1, np.int64),
        positions=np.zeros(1, np.int64),
        parents=np.full(1, -1, np.int64),
        index=none,
        targets=none,
        sample=none,
        sampler_logprobs=np.zeros(0, np.float32),
        advantages=np.zeros(0, np.float32),
        num_samples=0,
        top=TopTokens.joined([]).with_sampled(none, none),
    )


def _flat(lists: Iterable[Iterable[float]], dtype: type[np.generic]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(lists), dtype)


def _candidates(samples: Several[Sample]) -> list[list[int]] | None:
    """Candidate ids per trained token, empty where a sample was drawn from the full vocabulary."""
    if all(sample.sequence.candidates is None for sample in samples):
        return None
    kept: list[list[int]] = []
    for sequence in (sample.sequence for sample in samples):
        given = sequence.candidates or [[]] * len(sequence.tokens)
        kept += [ids for ids, trained in zip(given, sequence.trained, strict=True) if trained]
    return kept


def _top(samples: Several[Sample]) -> TopTokens | None:
    """The sampler's most likely tokens per trained token. None where a sample came without."""
    parts = [sample.sequence.top for sample in samples if sample.sequence.num_trained]
    known = [part for part in parts if part is not None]
    return TopTokens.joined(known) if len(known) == len(parts) else None
