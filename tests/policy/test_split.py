"""Case K29: into which rows a step's samples are packed changes neither loss nor gradient nor what is told of a token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from agrpo.objective import Objective
from agrpo.packing import packings
from agrpo.packing.sequence import Sequence
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.update import UpdateOutcome, update
from agrpo.policy.verifying import verify_packing
from agrpo.records.batch import Row
from agrpo.records.sample import Sample, TokenSequence
from agrpo.records.top_tokens import TopTokens
from tests.policy.objectives import OBJECTIVES, expect_some_masked, totals_of

MakeModel = Callable[..., PreTrainedModel]
VOCABULARY, NUM_TOP = 64, 4


def paths() -> list[tuple[list[int], int]]:
    """Samples and where their completion begins: groups under a shared system prompt, forks, an equal pair, a prefix."""
    draw = np.random.default_rng(7)

    def some(count: int) -> list[int]:
        return draw.integers(0, VOCABULARY, count).tolist()

    made: list[tuple[list[int], int]] = []
    system = some(4)
    for _ in range(2):
        prompt = system + some(3)
        trunk = prompt + some(3)
        made += [(trunk + some(int(count)), len(prompt)) for count in draw.integers(1, 9, 3)]
        made += [(trunk, len(prompt)), (trunk, len(prompt)), (prompt + some(5), len(prompt))]
    return [*made, (some(12), 2)]


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return some_samples()


def some_samples() -> list[Sample]:
    """With log-probs of a sampler near a uniform policy, and its most likely tokens."""
    draw = np.random.default_rng(8)
    made: list[Sample] = []
    for number, (tokens, start) in enumerate(paths()):
        count = len(tokens) - start
        logits = draw.normal(scale=0.7, size=(count, VOCABULARY))
        logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        best = np.argsort(-logprobs, axis=1)[:, :NUM_TOP]
        drawn = logprobs[np.arange(count), tokens[start:]].astype(np.float32).tolist()
        sequence = TokenSequence(
            tokens=tokens,
            trained=[False] * start + [True] * count,
            sampler_logprobs=[0.0] * start + drawn,
            versions=[0] * len(tokens),
            top=TopTokens(best.astype(np.int32), np.take_along_axis(logprobs, best, 1).astype(np.float32)),
        )
        advantage = float(np.float32(draw.normal()))
        made.append(
            Sample(
                ticket=0, rollout_index=number, sequence_index=0, sequence=sequence, advantage=advantage, staleness=0
            )
        )
    return made


def splits(samples: list[Sample]) -> Iterator[tuple[str, list[list[int]], list[Row]]]:
    """Each packing in one row, in several, and in rows for three ranks."""
    for name in packings.names():
        packing = packings.build(name, {})
        for micro_tokens, ranks in ((400, 1), (60, 1), (24, 1), (60, 3)):
            placed = packing.place(samples, micro_tokens, ranks)
            rows = [packing.lay_out([samples[number] for number in row]) for row in placed]
            yield f"{name}, {micro_tokens} tokens, {ranks} ranks", placed, rows


def gradient_of(model: PreTrainedModel, rows: list[Row], objective: Objective) -> tuple[UpdateOutcome, torch.Tensor]:
    """A plain step of rate 1 moves each weight by its gradient."""
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    outcome = update(
        model,
        torch.optim.SGD(model.parameters()),
        rows,
        objective=objective,
        totals=totals_of(objective, sum(row.num_trained for row in rows), sum(row.num_samples for row in rows)),
        temperature=1.0,
        learning_rate=1.0,
        max_grad_norm=math.inf,
    )
    return outcome, before - torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def told(placed: list[list[int]], rows: list[Row], outcome: UpdateOutcome, name: str) -> list[np.ndarray]:
    """A measure of every sample's tokens, by sample."""
    by_sample: dict[int, np.ndarray] = {}
    for numbers, row, seen in zip(placed, rows, outcome.rows, strict=True):
        for place, number in enumerate(numbers):
            by_sample[number] = seen.measures[name][row.sample == place]
    return [by_sample[number] for number in sorted(by_sample)]


@pytest.mark.spec("K29", "A-143")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_step_does_not_depend_on_the_rows_its_samples_are_packed_in(
    name: str, samples: list[Sample], make_model: MakeModel
):
    model = make_model("llama").double()
    verify_packing(model)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    alone = [[number] for number in range(len(samples))]
    rows = [Sequence().lay_out([sample]) for sample in samples]
    whole, gradient = gradient_of(model, rows, OBJECTIVES[name])
    expected = {measure: told(alone, rows, whole, measure) for measure in whole.rows[0].measures}
    assert gradient.norm() > 0
    expect_some_masked(name, expected)
    every = 1 if name in ("clip", "score_centering") else 3
    for what, placed, packed in islice(splits(samples), None, None, every):
        model.load_state_dict(weights)
        outcome, other = gradient_of(model, packed, OBJECTIVES[name])
        assert outcome.loss == pytest.approx(whole.loss, rel=1e-6), what
        assert outcome.grad_norm == pytest.approx(whole.grad_norm, rel=1e-6), what
        assert (other - gradient).norm() <= 1e-6 * gradient.norm(), what
        assert outcome.bonus == pytest.approx(whole.bonus, rel=1e-6), what
        for measure, values in expected.items():
            for found, value in zip(told(placed, packed, outcome, measure), values, strict=True):
                assert np.allclose(found, value, rtol=1e-6), (what, measure)


@pytest.mark.spec("A-147")
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_packed_samples_have_the_log_probs_they_have_alone(family: str, samples: list[Sample], make_model: MakeModel):
    model = make_model(family)
    verify_packing(model)
    with torch.no_grad():
        alone = [row_logprobs(model, Sequence().lay_out([sample]), temperature=0.7).logprobs for sample in samples]
        for what, placed, rows in splits(samples):
            for numbers, row in zip(placed, rows, strict=True):
                found = row_logprobs(model, row, temperature=0.7).logprobs
                for place, number in enumerate(numbers):
                    kept = found[torch.from_numpy(row.sample) == place]
                    # Log-probs are as low as -9, where float32 steps by 1e-6.
                    assert torch.allclose(kept, alone[number], rtol=1e-6, atol=1e-5), (what, number)
