"""Two ranks and one process on models that are more than layers of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.policy.trainee import Origin, Trainee, begin
from agrpo.policy.update import UpdateOutcome
from agrpo.stages.ranks import Recruiter
from agrpo.tensors import outside_text, trained_tensors
from tests.policy.ranks.conftest import LLAMA, numbers_of_step, rows_of_step
from tests.policy.ranks.test_two_ranks import assert_close
from tests.policy.test_balance import mixture
from tests.policy.vision_language import seeing

VOCABULARY = {"vocab_size": LLAMA["vocab_size"]}


def origin_of(folder: Path, model: PreTrainedModel, **settings: Any) -> Origin:
    model.float().save_pretrained(folder)
    return Origin(
        model=ModelSection(path=str(folder), **settings),
        adapter=AdapterSection(),
        optimizer=OptimizerSection(learning_rate=1e-3),
        seed=0,
        threads=1,
    )


def steps(trainee: Trainee) -> list[UpdateOutcome]:
    return [trainee.update(rows_of_step(step), numbers_of_step(step), lambda: None) for step in range(2)]


@pytest.mark.spec("A-144")
@pytest.mark.parametrize("recomputed", [False, True])
def test_experts_are_balanced_over_the_rows_of_all_ranks(recruiter: Recruiter, tmp_path: Path, recomputed: bool):
    settings = {"router_aux_loss_coef": 0.5, "activation_checkpointing": recomputed}
    origin = origin_of(tmp_path, mixture(**VOCABULARY), **settings)
    alone, shared = begin(origin), begin(origin, recruiter.form(2), recruiter)
    for one, two in zip(steps(alone), steps(shared), strict=True):
        assert one.aux_loss == pytest.approx(2.0, abs=0.5) and two.aux_loss == pytest.approx(one.aux_loss, rel=1e-5)
        assert two.loss == pytest.approx(one.loss, rel=1e-5)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-4)
    assert_close(trained_tensors(shared.model), trained_tensors(alone.model), 1e-5)


@pytest.mark.spec("A-264")
def test_a_vision_language_model_is_shared_out_and_what_sees_is_left_alone(recruiter: Recruiter, tmp_path: Path):
    origin = origin_of(tmp_path, seeing("Qwen3VL", **VOCABULARY))
    alone, shared = begin(origin), begin(origin, recruiter.form(2), recruiter)
    for one, two in zip(steps(alone), steps(shared), strict=True):
        assert two.loss == pytest.approx(one.loss, abs=1e-6)
    found = trained_tensors(shared.model)
    assert outside_text(shared.model) and not found.keys() & outside_text(shared.model)
    assert_close(found, trained_tensors(alone.model), 1e-5)
