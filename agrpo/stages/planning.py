"""Planning a step: its samples with their advantages, in rows, and what it drops and why.

Nothing here touches the weights. What comes out is a `Plan`, which is written before the step begins and is all that a
replay needs beside the groups themselves.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agrpo.advantages import Advantage
from agrpo.config import RunConfig
from agrpo.errors import RecordError
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.group_rewards import GroupRewards
from agrpo.records.progress import Plan, PlannedSample
from agrpo.records.rollout import StopReason
from agrpo.records.sample import Sample, TokenSequence
from agrpo.records.score import ScoredGroup
from agrpo.records.seeds import derive_seed
from agrpo.stages.choosing import Chosen
from agrpo.staleness import staleness

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StepNumbers:
    """What the learner knows of the step it is about to plan."""

    attempt: int
    step: int
    version: int
    """Newest published version."""
    ordinal: int
    """Publishes before the step."""
    digest: str
    """Of the weights before the step."""
    num_updates: int
    """Optimizer updates before the step."""
    learning_rate: float
    entropy_coefficient: float | None = None
    """Before the step; None: there is no bonus for entropy."""
    publish: int | None
    config_digest: str
    ranks: int = 1
    """Processes of the learner."""


def make_plan(
    config: RunConfig,
    chosen: Chosen,
    groups: dict[int, RolloutGroup],
    numbers: StepNumbers,
    advantages: Mapping[int, np.ndarray] | None = None,
) -> Plan:
    """The step's plan: samples with their advantages, laid into rows. `groups`: the chosen ones, by ticket.

    `advantages`: of the run's own `compute_advantages`, by ticket. None: `config.advantage` gives them.
    """
    if advantages is None:
        advantages = _advantages(config.advantage, chosen.groups)
    samples: list[Sample] = []
    for scored in chosen.groups:
        samples += _samples_of(scored, groups[scored.ticket], advantages[scored.ticket], numbers.ordinal)
    kept = [one for one in samples if not (config.step.mask_truncated and _is_cut(groups[one.ticket], one))]
    num_truncated, samples = len(samples) - len(kept), kept
    fitting = [sample for sample in samples if len(sample.sequence.tokens) <= config.step.micro_tokens]
    num_trained_tokens = sum(sample.sequence.num_trained for sample in fitting)
    if len(fitting) < len(samples):
        _say_too_long(numbers.step, samples, len(fitting), config.step.micro_tokens)
    return Plan(
        attempt=numbers.attempt,
        step=numbers.step,
        tickets=[scored.ticket for scored in chosen.groups],
        drops=chosen.drops,
        samples=[
            PlannedSample(
                ticket=sample.ticket,
                rollout_index=sample.rollout_index,
                sequence_index=sample.sequence_index,
                advantage=sample.advantage,
                staleness=sample.staleness,
            )
            for sample in fitting
        ],
        rows=config.packing.place(fitting, config.step.micro_tokens, numbers.ranks),
        ranks=numbers.ranks,
        num_replaced=chosen.num_replaced,
        num_oversize=len(samples) - len(fitting),
        num_truncated=num_truncated,
        num_trained_tokens=num_trained_tokens,
        untrained_in_a_row=chosen.untrained_in_a_row,
        num_queued_samples=chosen.num_queued_samples,
        num_updates=numbers.num_updates + (num_trained_tokens > 0),
        version=numbers.version,
        learning_rate=numbers.learning_rate,
        entropy_coefficient=numbers.entropy_coefficient,
        seed=derive_seed(config.run.seed, "step", numbers.step),
        publish=numbers.publish,
        ordinal=numbers.ordinal + (numbers.publish is not None),
        parent_digest=numbers.digest,
        config_digest=numbers.config_digest,
        planned_at=time.time(),
    )


def _advantages(advantage: Advantage, trained: list[ScoredGroup]) -> dict[int, np.ndarray]:
    """float32 `[G]` by ticket, of the step's groups together."""
    found = advantage([GroupRewards.of(scored.scores, scored.rewards) for scored in trained])
    return {scored.ticket: own for scored, own in zip(trained, found, strict=True)}


def _say_too_long(step: int, samples: list[Sample], num_fitting: int, micro_tokens: int) -> None:
    logger.warning(
        "step %d leaves out %d of its %d samples: longer than step.micro_tokens = %d, the longest %d tokens; raise it to train "
        "them",
        step,
        len(samples) - num_fitting,
        len(samples),
        micro_tokens,
        max(len(sample.sequence.tokens) for sample in samples),
    )


def _is_cut(group: RolloutGroup, sample: Sample) -> bool:
    return group.rollouts[sample.rollout_index].stop_reason is StopReason.LENGTH


def _samples_of(scored: ScoredGroup, group: RolloutGroup, advantages: np.ndarray, ordinal: int) -> list[Sample]:
    samples: list[Sample] = []
    for rollout, sequences, advantage in zip(group.rollouts, group.completions_sequences, advantages, strict=True):
        for index, sequence in enumerate(sequences):
            if sequence.num_trained and not math.isnan(scored.rewards[rollout.index]):
                samples.append(
                    Sample(
                        ticket=group.ticket,
                        rollout_index=rollout.index,
                        sequence_index=index,
                        sequence=sequence,
                        advantage=float(advantage),
                        staleness=staleness(ordinal, scored.ordinal),
                    )
                )
    return samples


def read_groups(folder: RunFolder, tickets: list[int]) -> dict[int, RolloutGroup]:
    """The groups a plan trains, with tokens, by ticket."""
    groups: dict[int, RolloutGroup] = {}
    for ticket in tickets:
        groups[ticket] = group_from_arrow(folder.groups.demand(ticket), folder.groups.key(ticket))
    return groups


def samples_of_plan(plan: Plan, groups: dict[int, RolloutGroup]) -> list[Sample]:
    """The plan's samples with their tokens, in the plan's order."""
    sequences: dict[int, list[list[TokenSequence]]] = {
        ticket: group.completions_sequences for ticket, group in groups.items()
    }
    return [
        Sample(
            ticket=planned.ticket,
            rollout_index=planned.rollout_index,
            sequence_index=planned.sequence_index,
            sequence=_sequence_of(plan, planned, sequences.get(planned.ticket, [])),
            advantage=planned.advantage,
            staleness=planned.staleness,
        )
        for planned in plan.samples
    ]


def _sequence_of(plan: Plan, planned: PlannedSample, sequences: list[list[TokenSequence]]) -> TokenSequence:
    rollout, sequence = planned.rollout_index, planned.sequence_index
    if 0 <= rollout < len(sequences) and 0 <= sequence < len(sequences[rollout]):
        return sequences[rollout][sequence]
    raise RecordError(
        f"step {plan.step} of attempt {plan.attempt} trains sequence {sequence} of rollout {rollout} of ticket "
        f"{planned.ticket}, which its group does not hold: plan and group are not of one run; `agrpo verify` says what "
        "else does not fit"
    )
