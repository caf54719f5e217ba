"""What every packing promises: layout changes, nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agrpo.packing import packings
from agrpo.records.batch import Row
from agrpo.records.sample import Sample, TokenSequence

EACH = pytest.mark.parametrize("name", packings.names())


def samples(seed: int) -> list[Sample]:
    """Two groups of four samples; the samples of a group begin with the same prompt."""
    draw = random.Random(seed)
    made: list[Sample] = []
    for number in range(8):
        prompt = [number // 4 + 1] * draw.randint(2, 4) if number % 4 == 0 else made[-1].sequence.tokens[:2]
        answer = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        trained = [False] * len(prompt) + [draw.random() < 0.8 for _ in answer]
        logprobs = [-draw.random() if kept else 0.0 for kept in trained]
        sequence = TokenSequence(
            tokens=prompt + answer, trained=trained, sampler_logprobs=logprobs, versions=[0] * len(trained)
        )
        made.append(
            Sample(
                ticket=number // 4,
                rollout_index=number % 4,
                sequence_index=0,
                sequence=sequence,
                advantage=draw.random(),
                staleness=0,
            )
        )
    return made


def history(row: Row, term: int) -> list[int]:
    """The tokens that a trained token's prediction can see, first to last."""
    tokens, place = [], int(row.index[term])
    while place >= 0:
        assert row.parents[place] < place
        tokens.append(int(row.tokens[place]))
        place = int(row.parents[place])
    return tokens[::-1]


@EACH
@pytest.mark.parametrize("seed", range(5))
def test_every_sample_is_placed_once_within_the_budget(name: str, seed: int):
    packing, given = packings.build(name, {}), [*samples(seed), *samples(seed + 100)]
    rows = packing.place(given, 24)
    assert sorted(number for row in rows for number in row) == list(range(len(given)))
    assert all(packing.lay_out([given[number] for number in row]).num_tokens <= 24 for row in rows)
    assert packings.build(name, {}).place(given, 24) == rows


@pytest.mark.spec("A-146", "A-147", "A-152")
@EACH
@pytest.mark.parametrize("seed", range(5))
def test_every_trained_token_keeps_its_history_log_prob_and_advantage(name: str, seed: int):
    given = samples(seed)
    row = packings.build(name, {}).lay_out(given)
    found = [
        (
            int(row.sample[term]),
            history(row, term),
            int(row.targets[term]),
            row.sampler_logprobs[term],
            row.advantages[term],
        )
        for term in range(row.num_trained)
    ]
    expected = [
        (
            number,
            sample.sequence.tokens[:at],
            sample.sequence.tokens[at],
            sample.sequence.sampler_logprobs[at],
            sample.advantage,
        )
        for number, sample in enumerate(given)
        for at, trained in enumerate(sample.sequence.trained)
        if trained
    ]
    assert [term[:3] for term in sorted(found)] == [term[:3] for term in sorted(expected)]
    assert np.allclose([term[3:] for term in sorted(found)], [term[3:] for term in sorted(expected)], rtol=1e-6, atol=0)
    assert row.num_samples == len(given)


@pytest.mark.spec("A-147")
@EACH
def test_position_is_the_depth_in_the_sample(name: str):
    row = packings.build(name, {}).lay_out(samples(0))
    depths = [len(history(row, term)) - 1 for term in range(row.num_trained)]
    assert row.positions[row.index].tolist() == depths
