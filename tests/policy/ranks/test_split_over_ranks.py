"""Case K29 over processes: into how many of them a step is split changes neither loss nor gradient nor what is told of a token.

In float64 throughout, so that a difference is a fault and no rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.packing import packings
from agrpo.policy.trainee import Origin, Trainee, UpdateSettings, begin
from agrpo.policy.update import UpdateOutcome
from agrpo.stages.ranks import Recruiter
from tests.policy.objectives import OBJECTIVES, expect_some_masked, totals_of
from tests.policy.ranks.conftest import LLAMA
from tests.policy.test_split import some_samples, told

SAMPLES = some_samples()
TOLERANCE = 1e-6

Told = tuple[UpdateOutcome, dict[str, np.ndarray]]
"""And the loss's measures, of every token by sample."""


@pytest.fixture(scope="module")
def alone_and_shared(recruiter: Recruiter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Trainee]]:
    """One policy in this process, and in two. At a rate of 0 steps leave it where it is."""
    folder: Path = tmp_path_factory.mktemp("double")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**LLAMA)
        AutoModelForCausalLM.from_config(config).double().save_pretrained(folder)
    origin = Origin(
        model=ModelSection(path=str(folder), dtype="auto"),
        adapter=AdapterSection(),
        optimizer=OptimizerSection(learning_rate=1e-3),
        seed=0,
        threads=1,
    )
    yield [begin(origin), begin(origin, recruiter.form(2), recruiter)]


def outcome_of(trainee: Trainee, packing: str, micro_tokens: int, settings: UpdateSettings) -> Told:
    laid = packings.build(packing, {})
    placed = laid.place(SAMPLES, micro_tokens, trainee.group.size)
    rows = [laid.lay_out([SAMPLES[number] for number in row]) for row in placed]
    outcome = trainee.update(rows, settings, lambda: None)
    names = next(row.measures.keys() for row in outcome.rows if row.measures)
    measures = {name: np.concatenate(told(placed, rows, outcome, name)) for name in names}
    return outcome, measures


@pytest.mark.spec("K29", "A-143")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_does_not_depend_on_the_number_of_processes(alone_and_shared: list[Trainee], name: str):
    alone, shared = alone_and_shared
    settings = UpdateSettings(
        objective=OBJECTIVES[name],
        totals=totals_of(OBJECTIVES[name], sum(sum(sample.sequence.trained) for sample in SAMPLES), len(SAMPLES)),
        temperature=0.8,
        learning_rate=0.0,
        max_grad_norm=1.0,
        seed=0,
    )
    one, expected = outcome_of(alone, "sequence", 400, settings)
    two, found = outcome_of(shared, "tree", 30, settings)
    assert {weight.dtype for weight in shared.model.parameters()} == {torch.float64}
    assert two.loss == pytest.approx(one.loss, rel=TOLERANCE)
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=TOLERANCE) and one.grad_norm > 0
    assert two.bonus == pytest.approx(one.bonus, rel=TOLERANCE)
    assert (two.entropy_ahead or 0.0) == pytest.approx(one.entropy_ahead or 0.0, rel=TOLERANCE)
    assert found.keys() == expected.keys()
    expect_some_masked(name, {measure: [values] for measure, values in expected.items()})
    for measure, values in expected.items():
        np.testing.assert_allclose(found[measure], values, rtol=TOLERANCE, err_msg=measure)
