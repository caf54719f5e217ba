"""Whole runs with filters, advantages over the step and masked rollouts: trained, recorded, verified, replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from agrpo.audit.verifying import verify
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.errors import FilterError, RewardError
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import DropReason, Plan
from agrpo.stages.recorder import record_once
from tests.audit.finished import replan
from tests.stages.walk import LOCKSTEP, dones, walk

Begin = Callable[..., RunFolder]
TWO = [{"name": "tests.stages.judges:distinct_tokens"}, {"name": "tests.filters.own:longest", "weight": 0.5}]
EVEN = [{"name": "tests.filters.own:EvenTickets"}]


def plans(folder: RunFolder) -> list[Plan]:
    found = [folder.plan(StepKey(0, step)) for step in folder.done_steps(0)]
    return [plan for plan in found if plan is not None]


@pytest.mark.slow
def test_a_lockstep_run_with_a_filter_of_ones_own_fills_its_steps_and_balances(begin: Begin):
    folder = begin(filters=EVEN, rewards=TWO, advantage={"name": "gdpo"}, stop={"max_steps": 2}, **LOCKSTEP)
    walk(folder)
    assert [plan.tickets for plan in plans(folder)] == [[0, 2], [4, 6]]
    drops = [(drop.ticket, drop.reason, drop.left_out_by) for plan in plans(folder) for drop in plan.drops]
    assert drops == [(ticket, DropReason.LEFT_OUT, EVEN[0]["name"]) for ticket in (1, 3, 5)]
    record_once(folder, Database(folder.database))
    told = query(
        folder.database,
        "SELECT ticket, left_out_by FROM live_step_groups WHERE drop_reason = 'left_out' ORDER BY ticket",
    )
    assert [row["ticket"] for row in told.to_pylist()] == [1, 3, 5]
    name = f"filters/{EVEN[0]['name']}/left_out_count"
    (sums,) = query(
        folder.database, f"SELECT list(value ORDER BY step) AS v FROM step_metrics WHERE name = '{name}'"
    ).to_pylist()
    assert sums["v"] == [done.metrics[name] for done in dones(folder)] == [1.0, 2.0]
    assert verify(folder, deep=True).findings == []
    _forge(folder, plans(folder)[1])


def _forge(folder: RunFolder, plan: Plan) -> None:
    """An advantage, which the other groups of its step have a part in, and the filter of a drop."""
    first, *rest = plan.samples
    replan(folder, plan, samples=[replace(first, advantage=first.advantage + 0.5), *rest])
    told = [str(finding) for finding in verify(folder, database=False).findings]
    assert any(f"its rewards give {first.advantage!r}" in one for one in told)
    replan(folder, plan, drops=[replace(plan.drops[0], left_out_by="overlong"), *plan.drops[1:]])
    told = [str(finding) for finding in verify(folder, database=False).findings]
    assert any(f"says that overlong leaves it out; expected {EVEN[0]['name']}" in one for one in told)


def test_steps_of_rollouts_that_were_all_cut_are_empty_and_balance(begin: Begin):
    masks = {"zero_variance": "keep", "mask_truncated": True}
    folder = begin(step=masks, engine={"max_completion_length": 1}, stop={"max_steps": 2})
    walk(folder)
    for plan, done in zip(plans(folder), dones(folder), strict=True):
        cut = plan.num_truncated
        assert cut == done.metrics["batch/masked_truncated_count"] > 0
        assert len(plan.samples) + cut == 8
    record_once(folder, Database(folder.database))
    assert verify(folder, deep=True).findings == []


@pytest.mark.spec("K26")
def test_a_run_whose_filters_leave_out_every_group_ends_and_says_by_which(begin: Begin):
    folder = begin(
        filters=[{"name": "pass_rate", "low": 0.5, "high": 0.9, "threshold": 1e9}], step={"zero_variance": "keep"}
    )
    with pytest.raises(
        RewardError, match="no group could be trained in two passes over 12 prompts: 24 left_out by pass_rate"
    ):
        walk(folder)


def test_a_filter_that_fails_ends_the_run_with_its_name(begin: Begin):
    with pytest.raises(FilterError, match=r'filter "tests.filters.own:Fails" failed on ticket \d+: KeyError'):
        walk(begin(filters=[{"name": "tests.filters.own:Fails"}]))
