"""Reported cases of lost and repeated prompts, with real stages over a run that was killed at the moment they speak of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agrpo.audit import verify
from agrpo.config import RunConfig, load_settings
from agrpo.prompts import PromptOrder
from agrpo.queue.checkpoints import lineage_checkpoints, manifest_of
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.arrow import group_from_arrow
from agrpo.records.progress import DropReason
from tests.audit.finished import begin, line, told
from tests.database.synthetic import add_group, add_scores
from tests.stages.walk import Walk, walk

SMALL = {
    "engine": {"num_generations": 2},
    "asynchronous": {"max_staleness": 2},
    "stop": {"max_steps": None, "epochs": 1},
}


def trained(folder: RunFolder) -> list[int]:
    """Tickets, in the order in which any attempt trained them."""
    found: list[int] = []
    for attempt in folder.attempts():
        for step in folder.done_steps(attempt):
            plan = folder.plan(StepKey(attempt, step))
            found += plan.tickets
    return found


def slots(folder: RunFolder, tickets: set[int]) -> dict[int, bytes]:
    return {ticket: folder.groups.read(ticket).to_pybytes() for ticket in tickets}


@pytest.mark.spec("K01")
@pytest.mark.parametrize("stale", [{2}, {2, 4}, {9}], ids=["one", "several", "the last"])
def test_a_group_dropped_as_stale_does_not_hold_the_place_where_a_run_goes_on(
    tiny_model: Path, tmp_path: Path, stale: set[int]
):
    folder = begin(tiny_model, tmp_path, step={"groups": 1, "zero_variance": "drop"}, **SMALL)
    learner = Walk(folder).start("learner")
    fresh = [ticket for ticket in range(10) if ticket not in stale]
    for done, ticket in enumerate(fresh):
        if done == 6:
            publish(folder, stale - {9}, version=0)
        publish(folder, {ticket}, version=done)
        learner.until(lambda done=done: len(folder.done_steps(0)) > done and folder.version(0, done + 1) is not None)
    publish(folder, stale & {9}, version=0)
    learner.stop.set()
    learner.threads[0].join(60)
    before = slots(folder, set(range(10)))
    assert trained(folder) == fresh
    balance = verify(folder, database=False)
    assert balance.findings == []
    assert f"trained {len(fresh)}" in line(balance, "tickets")
    walk(folder)
    assert folder.claims.tickets(0) == list(range(12))
    assert slots(folder, set(range(10))) == before
    assert all(folder.claims.holder(ticket).number_try == 0 for ticket in range(12))
    assert Counter(trained(folder)) == Counter([*fresh, 10, 11])
    drops = [
        drop
        for attempt in (0, 1)
        for step in folder.done_steps(attempt)
        for drop in folder.plan(StepKey(attempt, step)).drops
    ]
    assert {drop.ticket for drop in drops if drop.reason is DropReason.STALE} == stale
    state = manifest_of(folder, lineage_checkpoints(folder)[0]).state
    assert (state.floor, state.consumed) == (12, [])
    assert told(folder, database=False) == []


def publish(folder: RunFolder, tickets: set[int], *, version: int) -> None:
    """What a generator and a scorer would, of groups sampled under a version."""
    config = RunConfig.build(load_settings(folder.document()))
    order = PromptOrder(config.prompts.source(), seed=config.data_seed, shuffle=config.prompts.shuffle)
    for ticket in sorted(tickets):
        add_group(folder, ticket, version=version, prompt=order.prompt(ticket))
        add_scores(folder, ticket)


@pytest.mark.spec("K02")
def test_prompts_that_waited_or_were_in_flight_when_all_was_killed_are_trained_once(tiny_model: Path, tmp_path: Path):
    tables = {**SMALL, "step": {"groups": 5, "zero_variance": "keep"}}
    folder = begin(tiny_model, tmp_path, num_prompts=20, **tables)
    queued, in_flight = leave_as_killed(folder)
    assert (len(queued), len(in_flight)) == (3, 2)
    before = slots(folder, queued)
    assert verify(folder, database=False).findings == []
    walk(folder)
    assert slots(folder, queued) == before
    rows = Counter(group_from_arrow(folder.groups.read(ticket)).prompt.row_index for ticket in trained(folder))
    assert rows == Counter(range(20))
    assert in_flight | queued <= set(trained(folder))
    assert all(folder.claims.holder(ticket).number_try == 1 for ticket in in_flight)
    assert told(folder, database=False) == []


def leave_as_killed(folder: RunFolder) -> tuple[set[int], set[int]]:
    """Train a step or two, then leave five groups behind: the first, second and fourth wait, the others are being sampled."""
    learner, others = Walk(folder).start("learner"), Walk(folder).start("generator", "scorer")
    learner.until(lambda: bool(folder.done_steps(0)))
    learner.stop.set()
    learner.threads[0].join(60)
    open_tickets = range(len(trained(folder)), len(trained(folder)) + 5)
    others.until(lambda: set(folder.scored.numbers()) >= set(open_tickets))
    others.stop.set()
    for thread in others.threads:
        thread.join(60)
    in_flight = {open_tickets[2], open_tickets[4]}
    for ticket in {*in_flight, *(set(folder.groups.numbers()) - set(range(open_tickets.stop)))}:
        folder.filesystem.delete(folder.groups.key(ticket))
        folder.filesystem.delete(folder.scored.key(ticket))
    return set(open_tickets) - in_flight, in_flight
