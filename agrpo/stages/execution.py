"""Carrying out a plan: the weights move, and what happened is told.

Given the same weights and groups, a plan always does the same, so the first time and a replay are one function.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from agrpo.config import RunConfig
from agrpo.metrics import StepFacts, measure_step
from agrpo.objective import Objective
from agrpo.objective.entropy import following
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.policy.flops import Arithmetic
from agrpo.policy.trainee import Trainee, UpdateSettings
from agrpo.policy.update import RowOutcome, UpdateOutcome
from agrpo.records.batch import Row
from agrpo.records.group import RolloutGroup
from agrpo.records.outcome import RowFacts, SampleOutcome
from agrpo.records.progress import Done, Plan
from agrpo.records.sample import Sample
from agrpo.records.score import ScoredGroup
from agrpo.records.tokens import StepTotals
from agrpo.records.trained_tokens import TrainedTokens
from agrpo.stages.clock import StepClock
from agrpo.stages.planning import samples_of_plan
from agrpo.stages.vocabulary import refuse_unknown_tokens
from agrpo.tensors import digest_of_tensor

__all__ = ["StepMaterial", "StepResult", "TokensOf", "Trainee", "carry_out"]


SOME_MEAN = {
    "clipped_low_share": "clipped_low",
    "clipped_high_share": "clipped_high",
    "capped_share": "capped",
    "phi": "phi",
    "kl": "divergence",
    "correction_mean": "correction",
    "sampler_mass": "sampler_mass",
}
"""Of a sample's outcome, means over its tokens of measures that some objectives have, by name."""


@dataclass(frozen=True, kw_only=True)
class StepMaterial:
    """A plan and what it speaks of."""

    plan: Plan
    groups: dict[int, RolloutGroup]
    """Trained groups with tokens, by ticket."""
    consumed: list[ScoredGroup]
    """Scores of every group the plan consumes."""
    clock: StepClock
    """Runs since the step before was done."""
    on_row: Callable[[], None] = lambda: None
    """Called after each micro-batch."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What came out of a step."""

    done: Done
    tokens: list[TrainedTokens]
    """By sample, in the plan's order."""


def carry_out(config: RunConfig, trainee: Trainee, material: StepMaterial) -> StepResult:
    """One optimizer step. Moves `trainee`; a plan without trained tokens leaves its weights as they are.

    It is carried out by as many ranks as the plan is for, where so many can be had: others give other bits.
    """
    plan, clock, started_at = material.plan, material.clock, time.time()
    samples = samples_of_plan(plan, material.groups)
    refuse_unknown_tokens(samples, _vocabulary_of(trainee), plan.step)
    rows = [config.packing.lay_out([samples[number] for number in row]) for row in plan.rows]
    if not plan.empty:
        trainee.become(plan.ranks)
    outcome = None if plan.empty else _update(config, trainee, rows, material)
    seen = _seen_samples(plan, samples, rows, outcome) if outcome else []
    trainee.num_tokens += sum(row.num_tokens for row in rows)
    trainee.num_prompts += len(plan.scored)
    with clock.part("digest"):
        digests = tensor_digests(trainee.model)
        reference_digest = _follow(config, trainee, plan)
    facts = StepFacts(
        plan=plan,
        consumed=material.consumed,
        samples=[one.outcome for one in seen],
        rows=[_row_facts(row, trainee.arithmetic) for row in rows],
        micro_tokens=config.step.micro_tokens,
        loss=outcome.loss if outcome else 0.0,
        grad_norm=outcome.grad_norm if outcome else 0.0,
        aux_loss=outcome.aux_loss if outcome else None,
        policy_loss=outcome.loss + outcome.bonus if outcome and config.entropy.is_on else None,
        num_tokens=trainee.num_tokens,
        timings=clock.lap(),
        has_tools=bool(config.tools.functions) or config.environments.are_given,
        peak_flops_per_second=trainee.peak_flops_per_second,
        num_generators=config.workers.generators,
        ratios_of_samples=config.loss.level == "sequence",
        corrections_of_samples=config.correction.mode.startswith("sequence"),
    )
    coefficient = _coefficient_after(config, plan, outcome)
    done = replace(
        _done(facts, digests, trainee.num_prompts, started_at),
        entropy_coefficient=coefficient,
        reference_digest=reference_digest,
    )
    return StepResult(done=done, tokens=[one.tokens for one in seen])


def objective_of(config: RunConfig) -> Objective:
    """What the run's file says of its loss."""
    return Objective(
        loss=config.loss,
        aggregation=config.aggregation,
        correction=config.correction,
        masks=config.masks,
        divergence=config.divergence,
        entropy=config.entropy,
    )


def _follow(config: RunConfig, trainee: Trainee, plan: Plan) -> str | None:
    """Let the reference follow the policy after an update, where it is its turn, and return the digest of what it became."""
    if plan.empty or not config.divergence.syncs_after(plan.num_updates):
        return None
    trainee.sync_reference(config.divergence.mixup)
    weights = trainee.reference_state
    assert weights is not None, "a reference that follows the policy has weights of its own"
    return digest_of({name: digest_of_tensor(tensor) for name, tensor in weights.items()})


def _coefficient_after(config: RunConfig, plan: Plan, outcome: UpdateOutcome | None) -> float | None:
    """Of the bonus for entropy. A step that trains nothing leaves it as it is."""
    if plan.entropy_coefficient is None or outcome is None or outcome.entropy_ahead is None:
        return plan.entropy_coefficient
    return following(config.entropy, plan.entropy_coefficient, outcome.entropy_ahead)


def _vocabulary_of(trainee: Trainee) -> int:
    """Tokens that its model has an embedding of."""
    return trainee.model.config.get_text_config().vocab_size


def _done(facts: StepFacts, digests: dict[str, str], num_prompts: int, started_at: float) -> Done:
    plan = facts.plan
    return Done(
        attempt=plan.attempt,
        step=plan.step,
        digest=digest_of(digests),
        digests=digests,
        loss=facts.loss,
        grad_norm=facts.grad_norm,
        aux_loss=facts.aux_loss,
        policy_loss=facts.policy_loss,
        metrics=measure_step(facts),
        samples=facts.samples,
        rows=facts.rows,
        timings=facts.timings,
        peak_flops_per_second=facts.peak_flops_per_second,
        num_tokens=facts.num_tokens,
        num_prompts=num_prompts,
        publish=plan.publish,
        empty=plan.empty,
        started_at=started_at,
        finished_at=time.time(),
    )


def _update(config: RunConfig, trainee: Trainee, rows: list[Row], material: StepMaterial) -> UpdateOutcome:
    plan, clock = material.plan, material.clock
    idle = [config.packing.lay_out([])] * (-len(rows) % trainee.group.size)
    outcome = trainee.update(
        [*rows, *idle],
        UpdateSettings(
            objective=objective_of(config),
            totals=StepTotals(
                num_tokens=plan.num_trained_tokens,
                num_samples=len(plan.samples),
                max_completion_length=config.sampling.max_completion_length,
                num_entropy_tokens=plan.num_trained_tokens,
                entropy_coefficient=plan.entropy_coefficient or 0.0,
            ),
            temperature=config.sampling.temperature,
            learning_rate=plan.learning_rate,
            max_grad_norm=config.optimizer.max_grad_norm,
            seed=plan.seed,
        ),
        material.on_row,
    )
    clock.move("forward", outcome.forward_seconds)
    clock.move("backward", outcome.backward_seconds)
    clock.move("optimizer", outcome.optimizer_seconds)
    return outcome


def _row_facts(row: Row, arithmetic: Arithmetic | None) -> RowFacts:
    own = np.unique(row.index << 32 | row.targets)  # a trained token: where it is predicted, and which it is
    return RowFacts(
        num_samples=row.num_samples,
        num_tokens=row.num_tokens,
        attention_cost=int((row.positions + 1).sum()),
        num_shared_terms=row.num_trained - len(own),
        flops=arithmetic.flops(row) if arithmetic else None,
    )


@dataclass(frozen=True, kw_only=True)
class _SeenSample:
    """A sample as the learner saw it, in numbers and token by token."""

    outcome: SampleOutcome
    tokens: TrainedTokens


def _seen_samples(plan: Plan, samples: list[Sample], rows: list[Row], outcome: UpdateOutcome) -> list[_SeenSample]:
    """What each sample looked like to the learner, in the plan's order."""
    found: dict[int, _SeenSample] = {}
    for micro_batch, (numbers, row) in enumerate(zip(plan.rows, rows, strict=True)):
        if not numbers:
            continue
        own = [samples[number] for number in numbers]
        found.update(zip(numbers, _seen_in_row(micro_batch, own, row, outcome.rows[micro_batch]), strict=True))
    return [found[number] for number in range(len(samples))]


def _seen_in_row(micro_batch: int, samples: list[Sample], row: Row, seen: RowOutcome) -> list[_SeenSample]:
    of = TokensOf(row)
    difference = np.abs(seen.logprobs - row.sampler_logprobs)
    ratio, measures = seen.measures["importance_ratio"], seen.measures
    numbers = {
        "entropy_mean": of.mean(seen.entropy),
        "logprob_difference_mean": of.mean(difference),
        "logprob_difference_max": of.each(np.maximum, difference),
        "ratio_min": of.each(np.minimum, ratio),
        "ratio_mean": of.mean(ratio),
        "ratio_max": of.each(np.maximum, ratio),
        "masked_share": of.mean(measures["masked"]),
        **{name: of.mean(measures[measure]) for name, measure in SOME_MEAN.items() if measure in measures},
    }
    if "correction" in measures:
        weights = measures["correction"]
        numbers |= {"correction_min": of.each(np.minimum, weights), "correction_max": of.each(np.maximum, weights)}
    log_probs, entropies = of.split(seen.logprobs), of.split(seen.entropy)
    return [
        _SeenSample(
            outcome=SampleOutcome(
                ticket=sample.ticket,
                rollout_index=sample.rollout_index,
                sequence_index=sample.sequence_index,
                micro_batch=micro_batch,
                advantage=sample.advantage,
                staleness=sample.staleness,
                num_tokens=len(sample.sequence.tokens),
                num_trained_tokens=len(log_probs[place]),
                **{name: values[place] for name, values in numbers.items()},
            ),
            tokens=TrainedTokens(
                ticket=sample.ticket,
                rollout_index=sample.rollout_index,
                sequence_index=sample.sequence_index,
                log_probs=log_probs[place],
                entropies=entropies[place],
            ),
        )
        for place, sample in enumerate(samples)
    ]


class TokensOf:
    """The trained tokens of a row by sample: what is said of tokens, `[N]`, told of each of the `S` samples."""

    def __init__(self, row: Row) -> None:
        self._order = np.argsort(row.sample, kind="stable")
        self._counts = np.bincount(row.sample, minlength=row.num_samples)
        assert self._counts.all(), "a sample without a trained token is no sample of a plan"
        self._starts = np.cumsum(self._counts) - self._counts

    def each(self, reduction: np.ufunc, values: np.ndarray) -> list[float]:
        return reduction.reduceat(values[self._order].astype(np.float64), self._starts).tolist()

    def mean(self, values: np.ndarray) -> list[float]:
        return (np.add.reduceat(values[self._order].astype(np.float64), self._starts) / self._counts).tolist()

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """The values of each sample's tokens, in their order."""
        return np.split(values[self._order], self._starts[1:])
