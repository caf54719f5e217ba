"""Which groups are trained: equal rewards, filters, and rollouts that were cut, from scores to the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agrpo.config import RunConfig
from agrpo.errors import HookError
from agrpo.filters import load_filters
from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.progress import Base, DropReason
from agrpo.records.score import Mark, Score, marks_of
from agrpo.rollout_loop import AsyncRolloutLoop
from agrpo.stages.choosing import WITHOUT_SAMPLES
from agrpo.stages.lookahead import Lookahead
from agrpo.stages.planning import make_plan, read_groups
from agrpo.stages.shelf import ConsumedTickets
from tests.stages.groups import a_config, a_group, cut, publish
from tests.stages.test_planning import NUMBERS, a_chooser, tickets

BAND = [{"name": "pass_rate", "low": 0.25, "high": 0.75}]
K26 = [(1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.0)]


def filtered(folder: RunFolder, rewards: list[tuple[float, ...]], **tables: Any) -> RunConfig:
    """A run with a filter, and its groups, scored by it."""
    config = a_config(**tables, filters=BAND)
    for ticket, own in enumerate(rewards):
        publish(folder, a_group(ticket, lengths=(4,) * len(own)), own, filters=load_filters(config.filters))
    return config


def test_a_filter_leaves_groups_out_by_name_and_others_come_in_their_place(folder: RunFolder):
    config = filtered(folder, [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0)], step={"zero_variance": "keep"})
    chosen = a_chooser(folder, config).choose(0)
    assert tickets(chosen.groups) == [1, 3]
    assert [(drop.ticket, drop.told) for drop in chosen.drops] == [
        (0, "left_out by pass_rate"),
        (2, "left_out by pass_rate"),
    ]
    assert chosen.num_replaced == 2
    plan = make_plan(config, chosen, read_groups(folder, [1, 3]), NUMBERS)
    assert [(drop.reason, drop.left_out_by) for drop in plan.drops] == [(DropReason.LEFT_OUT, "pass_rate")] * 2


@pytest.mark.parametrize("choice", ["keep", "drop", "refill"])
def test_a_group_that_a_filter_leaves_out_never_takes_a_place(folder: RunFolder, choice: str):
    config = filtered(folder, [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)], step={"zero_variance": choice})
    chosen = a_chooser(folder, config).choose(0)
    assert (tickets(chosen.groups), chosen.num_replaced) == ([1, 2], 1)


def test_in_lockstep_generators_know_which_tickets_filters_leave_out(folder: RunFolder):
    config = filtered(folder, [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)], asynchronous={"max_staleness": 0})
    assert config.zero_variance == "keep"
    rewinds = Rewinds({0: Base(attempt=0)}, lambda ticket: 0)
    assert [Lookahead(folder, config).dropped_before(ticket, rewinds) for ticket in range(4)] == [0, 1, 1, 2]


@pytest.mark.spec("K26")
def test_a_run_whose_filters_leave_everything_out_ends_its_choice_and_says_by_which(folder: RunFolder):
    config = filtered(folder, [(0.0, 0.0)] * 8, step={"zero_variance": "keep"})
    chosen = a_chooser(folder, config, prompts_per_epoch=4).choose(0)
    assert chosen.spent and not chosen.groups
    assert {drop.told for drop in chosen.drops} == {"left_out by pass_rate"}


@pytest.mark.spec("K26")
@pytest.mark.parametrize(("choice", "trained"), [("keep", [0, 1, 2, 3]), ("drop", [2, 3]), ("refill", [2, 3, 4, 5])])
def test_groups_of_equal_rewards_are_kept_dropped_or_replaced(folder: RunFolder, choice: str, trained: list[int]):
    config = a_config(step={"groups": 4, "zero_variance": choice}, engine={"num_generations": 4})
    for ticket, rewards in enumerate([*K26, (0.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 1.0)]):
        publish(folder, a_group(ticket, lengths=(4,) * 4), rewards)
    chosen = a_chooser(folder, config).choose(0)
    assert tickets(chosen.groups) == trained
    plan = make_plan(config, chosen, read_groups(folder, trained), NUMBERS)
    given = {ticket: [one.advantage for one in plan.samples if one.ticket == ticket] for ticket in trained}
    assert all(set(given[ticket]) == {0.0} for ticket in trained if ticket < 2)
    assert all(0.0 not in given[ticket] for ticket in trained if ticket >= 2)


@pytest.mark.spec("P-912")
def test_the_reward_that_is_named_decides_alone_whether_a_group_differs(folder: RunFolder):
    """All right and of different lengths, one answer right, and one whose sums are the same."""
    config = a_config(step={"groups": 2, "zero_variance_reward": "exact_match"})
    rows = [((1.0, 1.0), (-0.5, -0.1)), ((1.0, 0.0), (0.0, 0.0)), ((1.0, 0.0), (-1.0, 0.0)), ((1.0, None), (0.0, -0.5))]
    for ticket, (right, penalty) in enumerate(rows):
        named = Score(reward="exact_match", weight=1.0, values=[*right], errors=[None, None])
        publish(folder, a_group(ticket), penalty, others=[named], zero_variance_reward="exact_match")
    marks = {t: scored_from_arrow(folder.scored.demand(t), folder.scored.key(t)).marks for t in range(4)}
    equal = frozenset({Mark.EQUAL_REWARDS})
    assert marks == {0: equal, 1: frozenset(), 2: frozenset(), 3: equal}
    assert tickets(a_chooser(folder, config).choose(0).groups) == [1, 2]


def test_a_group_without_the_reward_that_is_named_is_judged_by_its_sums(folder: RunFolder):
    publish(folder, a_group(0), (1.0, 0.0), zero_variance_reward="exact_match")
    assert scored_from_arrow(folder.scored.demand(0), "0").marks == frozenset()


def test_one_rollout_alone_has_no_equal_where_an_advantage_needs_no_group():
    assert marks_of([1.0]) == {Mark.TOO_FEW_SCORES}
    assert marks_of([1.0], min_group=1) == frozenset()
    assert marks_of([float("nan")], min_group=1) == {Mark.TOO_FEW_SCORES}
    assert marks_of([1.0, 1.0], min_group=1) == {Mark.EQUAL_REWARDS}


@pytest.mark.spec("G-089", "G-159")
def test_a_rollout_that_was_cut_leaves_loss_and_counts_and_stays_in_its_groups_statistics(folder: RunFolder):
    publish(folder, cut(a_group(0, lengths=(4, 6)), 1), (1.0, 0.0))
    publish(folder, a_group(1, lengths=(3, 5)), (1.0, 0.0))
    plans = {}
    for masks in (False, True):
        config = a_config(step={"mask_truncated": masks})
        chosen = a_chooser(folder, config).choose(0)
        plans[masks] = make_plan(config, chosen, read_groups(folder, [0, 1]), NUMBERS)
    assert [(one.ticket, one.rollout_index) for one in plans[True].samples] == [(0, 0), (1, 0), (1, 1)]
    assert (plans[True].num_trained_tokens, plans[True].num_truncated) == (4 + 3 + 5, 1)
    assert (plans[False].num_trained_tokens, plans[False].num_truncated) == (4 + 6 + 3 + 5, 0)
    assert plans[True].samples[0].advantage == plans[False].samples[0].advantage == pytest.approx(0.70701, abs=1e-5)


@pytest.mark.spec("G-130")
def test_advantages_are_those_of_the_steps_groups_together(folder: RunFolder):
    config = a_config(advantage={"name": "grpo", "scale": "batch"})
    publish(folder, a_group(0), (1.0, 0.0))
    publish(folder, a_group(1), (3.0, 0.0))
    chosen = a_chooser(folder, config).choose(0)
    plan = make_plan(config, chosen, read_groups(folder, [0, 1]), NUMBERS)
    over = np.std([1.0, 0.0, 3.0, 0.0], ddof=1) + 1e-4
    assert [one.advantage for one in plan.samples] == pytest.approx(np.array([0.5, -0.5, 1.5, -1.5]) / over)


def test_a_hook_that_asks_for_the_default_is_refused_one_that_looks_at_other_groups():
    for advantage, is_refused in (({"name": "gdpo"}, True), ({"name": "leave_one_out"}, False)):
        loop = AsyncRolloutLoop(config=a_config(advantage=advantage), model_name="m", processing_class=None)
        group = replace(a_group(0), rewards=np.array([1.0, 0.0]))
        if is_refused:
            with pytest.raises(
                HookError, match=r"'gdpo'.* is made of all groups of a step, and compute_advantages sees one"
            ):
                loop.compute_advantages(group)
        else:
            assert loop.compute_advantages(group).tolist() == [1.0, -1.0]


@pytest.mark.spec("K26")
def test_groups_whose_every_rollout_was_cut_take_places_and_end_a_run_that_has_no_others(folder: RunFolder):
    config = a_config(step={"groups": 2, "mask_truncated": True, "zero_variance": "keep"})
    for ticket in range(10):
        publish(folder, cut(a_group(ticket), *((0, 1) if ticket else (0,))), (1.0, 0.0))
    consumed = ConsumedTickets()
    chooser = a_chooser(folder, config, consumed, prompts_per_epoch=4)
    steps = []
    while not chooser.spent:
        steps.append(chooser.choose(0))
        for ticket in tickets(steps[-1].groups):
            consumed.add(ticket)
    assert [tickets(chosen.groups) for chosen in steps] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert [chosen.untrained_in_a_row for chosen in steps] == [1, 3, 5, 7, 8]
    assert dict(steps[-1].reasons) == {WITHOUT_SAMPLES: 8}
    plan = make_plan(config, steps[1], read_groups(folder, [2, 3]), NUMBERS)
    assert (plan.empty, plan.num_truncated) == (True, 4)
