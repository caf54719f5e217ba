"""The documented fields of rollouts, turns and groups: their names, their order, their defaults (A-222 to A-237)."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest

import agrpo
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, TurnRecord

REQUIRED = "required"
ROLLOUT = {
    "completion": REQUIRED,
    "completion_ids": REQUIRED,
    "turns": REQUIRED,
    "tool_call_count": 0,
    "tool_failure_count": 0,
    "reward": None,
}
TURN = {
    "prompt_ids": REQUIRED,
    "output_ids": REQUIRED,
    "output_log_probs": [],
    "output_mask": None,
    "output_sampling_mask": None,
    "output_sampler_logprobs": None,
}


def defaults(record: type[Any]) -> dict[str, Any]:
    found = {each.name: each for each in fields(record)}
    return {
        name: REQUIRED
        if each.default is MISSING and each.default_factory is MISSING
        else each.default
        if each.default_factory is MISSING
        else each.default_factory()
        for name, each in found.items()
    }


@pytest.mark.spec("A-224", "A-228", "A-232")
@pytest.mark.parametrize(("record", "documented"), [(Rollout, ROLLOUT), (TurnRecord, TURN)])
def test_a_record_has_the_documented_fields_first_with_their_defaults(record: type[Any], documented: dict[str, Any]):
    found = defaults(record)
    assert list(found)[: len(documented)] == list(documented)
    assert {name: found[name] for name in documented} == documented


def test_every_rollout_has_an_id_of_its_own():
    first, second = (Rollout(completion=[], completion_ids=[], turns=[]).rollout_id for _ in range(2))
    assert first != second
    assert (len(first), int(first, 16) >= 0) == (32, True)


@pytest.mark.spec("A-233", "A-234")
def test_the_lists_of_a_group_have_one_entry_per_rollout():
    prompt = Prompt(id="p", messages=[{"role": "user", "content": "?"}], facts={"answer": "4"}, row_index=9)
    turn = TurnRecord(prompt_ids=[7], output_ids=[8, 1], output_log_probs=[-0.5, -0.25])
    rollouts = [
        Rollout(completion=[{"role": "assistant", "content": "4"}], completion_ids=[8, 1], turns=[turn], reward=0.5),
        Rollout(completion=[], completion_ids=[], turns=[], tool_call_count=2, tool_failure_count=1),
    ]
    group = RolloutGroup(ticket=3, prompt=prompt, rollouts=rollouts, model_version=2)
    assert group.prompts == [prompt.messages] * 2
    assert group.completions == [[{"role": "assistant", "content": "4"}], []]
    assert group.completions_ids == [[8, 1], []]
    assert [[sequence.tokens for sequence in own] for own in group.completions_sequences] == [[[7, 8, 1]], []]
    assert (group.tool_call_counts, group.tool_failure_counts) == ([0, 2], [0, 1])
    assert group.reward_kwargs == {"answer": ["4", "4"]}
    assert group.rollout_rewards == [0.5, None]
    assert (group.group_id, group.row_index, group.model_version, group.queued_at) == (3, 9, 2, 0.0)
    assert group.rewards is None


def test_the_documented_names_come_from_agrpo_itself():
    assert (agrpo.Rollout, agrpo.TurnRecord, agrpo.RolloutGroup) == (Rollout, TurnRecord, RolloutGroup)
    assert agrpo.AsyncRolloutLoop.__module__ == "agrpo.rollout_loop"
