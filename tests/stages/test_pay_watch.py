"""Groups that an environment does not pay: eight in a row end the run, each environment counted by itself."""

from __future__ import annotations

import pytest

from agrpo.errors import EnvironmentFault
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, Stay, StopReason
from agrpo.stages.pay_watch import PayWatch

PAID = Stay(environment="Game", reward_seconds=0.1, reward=1.0)
UNPAID = Stay(environment="Game", reward_seconds=0.1, reward_error="Game.get_reward raised KeyError: 'x'")
OTHER = Stay(environment="Other", reward_seconds=0.1, reward_error="Other.get_reward raised OSError: y")
UNASKED = Stay(environment="Game")


def group(*stays: Stay | None, failed: Stay | None = None) -> RolloutGroup:
    """`failed`: of one more rollout, that the engine left."""
    rollouts = [Rollout(completion=[], completion_ids=[1], turns=[], stay=stay) for stay in stays]
    if failed is not None:
        lost = Rollout(completion=[], completion_ids=[], turns=[], stay=failed, stop_reason=StopReason.ENGINE_ERROR)
        rollouts.append(lost)
    return RolloutGroup(ticket=0, prompt=Prompt(id="p", messages=[]), rollouts=rollouts, model_version=0)


def test_eight_groups_in_a_row_without_pay_end_the_run_with_the_last_reason():
    watch = PayWatch()
    for _ in range(7):
        watch.count(group(UNPAID, UNPAID, failed=UNASKED))
    with pytest.raises(EnvironmentFault) as ended:
        watch.count(group(UNPAID, UNPAID))
    assert str(ended.value) == (
        "Game.get_reward failed for every rollout of 8 groups in a row, last: Game.get_reward raised KeyError: 'x'; mend it, "
        "then `agrpo resume` this run"
    )


def test_one_value_begins_the_count_anew():
    watch = PayWatch()
    for _ in range(3):
        for _ in range(7):
            watch.count(group(UNPAID, UNPAID))
        watch.count(group(UNPAID, PAID))


def test_groups_of_others_neither_count_nor_end_the_count():
    watch = PayWatch()
    for _ in range(7):
        watch.count(group(UNPAID, UNPAID))
        watch.count(group(OTHER, OTHER))
        watch.count(group(UNASKED, UNASKED))
        watch.count(group(None, None))
        watch.count(group())
    with pytest.raises(EnvironmentFault, match=r"Other\.get_reward failed"):
        watch.count(group(OTHER))
