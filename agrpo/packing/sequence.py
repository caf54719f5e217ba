"""Whole samples one after another in a row: no padding, and nothing shared between samples."""

from __future__ import annotations

from collections.abc import Sequence as Several
from itertools import chain

import numpy as np

from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.registry import part


@part
class Sequence:
    """Longest samples first, each into the first row that has room.

    A row then holds samples of equal length side by side, which attention reads in one call.
    """

    def place(self, lengths: Several[int], budget: int) -> list[list[int]]:
        """Rows of sample numbers, longest first; equal lengths keep their order."""
        rows: list[list[int]] = []
        room: list[int] = []
        for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
            length = lengths[number]
            assert length <= budget, (
                f"sample {number} has {length} tokens, a row holds {budget}: drop it before placing"
            )
            row = next((row for row, left in enumerate(room) if left >= length), len(rows))
            if row == len(rows):
                rows.append([])
                room.append(budget)
            rows[row].append(number)
            room[row] -= length
        return rows

    def lay_out(self, samples: Several[Sample]) -> Row:
        """The samples' tokens in the order given; each sample is a chain of its own."""
        sequences = [sample.sequence for sample in samples]
        lengths = np.array([len(sequence.tokens) for sequence in sequences], np.int64)
        trained = np.fromiter(chain.from_iterable(sequence.trained for sequence in sequences), bool)
        tokens = np.fromiter(chain.from_iterable(sequence.tokens for sequence in sequences), np.int64)
        positions = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        assert not trained[positions == 0].any(), "a sample's first token is trained, but nothing predicts it"
        owner = np.repeat(np.arange(len(samples)), lengths)
        logprobs = np.fromiter(chain.from_iterable(sequence.sampler_logprobs for sequence in sequences), np.float32)
        advantages = np.array([sample.advantage for sample in samples], np.float32)
        return Row(
            tokens=tokens,
            positions=positions,
            parents=np.where(positions == 0, -1, np.arange(len(tokens)) - 1),
            index=np.flatnonzero(trained) - 1,
            targets=tokens[trained],
            sample=owner[trained],
            sampler_logprobs=logprobs[trained],
            advantages=advantages[owner[trained]],
            num_samples=len(samples),
            candidates=_candidates(samples),
        )


def _candidates(samples: Several[Sample]) -> list[list[int]] | None:
    """Candidate ids per trained token, empty where a sample was drawn from the full vocabulary."""
    if all(sample.sequence.candidates is None for sample in samples):
        return None
    kept: list[list[int]] = []
    for sequence in (sample.sequence for sample in samples):
        given = sequence.candidates or [[]] * len(sequence.tokens)
        kept += [ids for ids, trained in zip(given, sequence.trained, strict=True) if trained]
    return kept
