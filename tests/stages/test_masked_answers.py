"""Answers whose tokens are all masked: they are forwarded by nobody, weigh nothing, and a step of them alone is no step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from agrpo.losses import losses
from agrpo.queue.run_folder import RunFolder
from agrpo.records.group import RolloutGroup
from tests.stages.groups import a_group, publish
from tests.stages.walk import Walk, dones

Begin = Callable[..., RunFolder]
EACH = pytest.mark.parametrize("loss", losses.names())


def masked(group: RolloutGroup, rollouts: tuple[int, ...]) -> RolloutGroup:
    """The group with every token of these rollouts masked."""
    turns = {
        index: [replace(turn, output_mask=[0] * len(turn.output_ids)) for turn in group.rollouts[index].turns]
        for index in rollouts
    }
    return replace(
        group, rollouts=[replace(one, turns=turns.get(index, one.turns)) for index, one in enumerate(group.rollouts)]
    )


def trained(begin: Begin, name: str, loss: str, rollouts: tuple[int, ...]) -> RunFolder:
    folder = begin(
        name,
        loss={"name": loss},
        asynchronous={"max_staleness": 9},
        step={"groups": 2, "zero_variance": "keep"},
        stop={"max_steps": 2},
    )
    for ticket in range(4):
        publish(folder, masked(a_group(ticket, lengths=(4, 6)), rollouts), (0.0, 1.0))
    Walk(folder).start("learner").join()
    return folder


@pytest.mark.spec("K28")
@EACH
def test_step_of_masked_answers_alone_is_empty_and_moves_no_weight(begin: Begin, loss: str):
    first, second = dones(trained(begin, "run", loss, (0, 1)))
    assert first.empty and second.empty
    assert first.digest == second.digest
    assert first.samples == [] and "loss" not in first.metrics


@pytest.mark.spec("K28")
@EACH
def test_masked_answer_is_no_sample_of_its_step(begin: Begin, loss: str):
    for done in dones(trained(begin, "run", loss, (1,))):
        assert not done.empty
        assert [(sample.rollout_index, sample.num_trained_tokens) for sample in done.samples] == [(0, 4), (0, 4)]
        assert done.metrics["batch/trained_tokens_per_step"] == 4 * 2
