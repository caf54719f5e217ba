"""Carrying out a plan: the weights move, and what happened is told.

Given the same weights and groups, a plan always does the same, so the first time and a replay are one function.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agrpo.config import RunConfig
from agrpo.metrics import StepFacts, measure_step
from agrpo.policy.determinism import seed_draws
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.policy.update import UpdateOutcome, update
from agrpo.records.batch import Row
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import Done, Plan, SampleOutcome
from agrpo.records.sample import Sample
from agrpo.records.score import ScoredGroup
from agrpo.records.tokens import StepTotals
from agrpo.stages.planning import samples_of_plan

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PreTrainedModel


@dataclass(kw_only=True)
class Trainee:
    """The policy in training: what a checkpoint holds."""

    model: PreTrainedModel
    optimizer: Optimizer
    num_tokens: int = 0
    """Tokens forwarded since the start of the run."""
    num_prompts: int = 0
    """Prompts consumed since the start of the run."""


@dataclass(frozen=True, kw_only=True)
class StepMaterial:
    """A plan and what it speaks of."""

    plan: Plan
    groups: dict[int, RolloutGroup]
    """Trained groups with tokens, by ticket."""
    consumed: list[ScoredGroup]
    """Scores of every group the plan consumes."""
    began_at: float
    """Monotonic seconds when the step before was done."""


def carry_out(config: RunConfig, trainee: Trainee, material: StepMaterial) -> Done:
    """One optimizer step. Moves `trainee`; a plan without trained tokens leaves its weights as they are."""
    plan, started_at = material.plan, time.time()
    samples = samples_of_plan(plan, material.groups)
    outcome, outcomes = None, []
    if not plan.empty:
        rows = [config.packing.lay_out([samples[number] for number in row]) for row in plan.rows]
        outcome = _update(config, trainee, plan, rows)
        outcomes = _sample_outcomes(plan, samples, rows, outcome)
    trainee.num_tokens += sum(sample.num_tokens for sample in outcomes)
    trainee.num_prompts += len(plan.consumed)
    digests = tensor_digests(trainee.model)
    facts = StepFacts(
        plan=plan,
        consumed=material.consumed,
        samples=outcomes,
        loss=outcome.loss if outcome else 0.0,
        grad_norm=outcome.grad_norm if outcome else 0.0,
        num_tokens=trainee.num_tokens,
        step_seconds=time.monotonic() - material.began_at,
    )
    return Done(
        attempt=plan.attempt,
        step=plan.step,
        digest=digest_of(digests),
        digests=digests,
        loss=facts.loss,
        grad_norm=facts.grad_norm,
        metrics=measure_step(facts),
        samples=outcomes,
        num_tokens=trainee.num_tokens,
        num_prompts=trainee.num_prompts,
        publish=plan.publish,
        empty=plan.empty,
        started_at=started_at,
        finished_at=time.time(),
    )


def _update(config: RunConfig, trainee: Trainee, plan: Plan, rows: list[Row]) -> UpdateOutcome:
    seed_draws(plan.seed)
    return update(
        trainee.model,
        trainee.optimizer,
        rows,
        loss=config.loss,
        aggregation=config.aggregation,
        totals=StepTotals(
            num_tokens=plan.num_trained_tokens,
            num_samples=len(plan.samples),
            max_completion_length=config.sampling.max_completion_length,
        ),
        temperature=config.sampling.temperature,
        learning_rate=plan.learning_rate,
        max_grad_norm=config.optimizer.max_grad_norm,
    )


def _sample_outcomes(plan: Plan, samples: list[Sample], rows: list[Row], outcome: UpdateOutcome) -> list[SampleOutcome]:
    """What each sample looked like to the learner, in the plan's order."""
    found: dict[int, SampleOutcome] = {}
    for micro_batch, (numbers, row) in enumerate(zip(plan.rows, rows, strict=True)):
        seen = outcome.rows[micro_batch]
        for place, number in enumerate(numbers):
            tokens = row.sample == place
            found[number] = _sample_outcome(
                samples[number],
                micro_batch,
                difference=np.abs(seen.logprobs[tokens] - row.sampler_logprobs[tokens]),
                entropy=seen.entropy[tokens],
                measures={name: values[tokens] for name, values in seen.measures.items()},
            )
    return [found[number] for number in range(len(samples))]


def _sample_outcome(
    sample: Sample, micro_batch: int, *, difference: np.ndarray, entropy: np.ndarray, measures: dict[str, np.ndarray]
) -> SampleOutcome:
    ratio = measures["importance_ratio"]
    return SampleOutcome(
        ticket=sample.ticket,
        rollout_index=sample.rollout_index,
        sequence_index=sample.sequence_index,
        micro_batch=micro_batch,
        advantage=sample.advantage,
        staleness=sample.staleness,
        num_tokens=len(sample.sequence.tokens),
        num_trained_tokens=sample.sequence.num_trained,
        entropy_mean=float(entropy.mean()),
        logprob_difference_mean=float(difference.mean()),
        logprob_difference_max=float(difference.max()),
        ratio_min=float(ratio.min()),
        ratio_mean=float(ratio.mean()),
        ratio_max=float(ratio.max()),
        masked_share=float(measures["masked"].mean()),
        clipped_low_share=float(measures["clipped_low"].mean()),
        clipped_high_share=float(measures["clipped_high"].mean()),
    )
