"""How many tokens may be queued or in flight, told to generators as one ticket (ruling 25)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.stages.run_ahead import RunAhead
from agrpo.stages.shelf import ConsumedTickets, Shelf
from tests.database.synthetic import new_run
from tests.stages.groups import a_config, a_group, publish

SHORT, LONG = (3, 4), (8, 9)
"""Lengths of two rollouts whose prompts have 3 tokens: groups of 13 and of 23 tokens."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path / "run")


def begun(folder: RunFolder, max_staleness: int) -> RunAhead:
    config = a_config(asynchronous={"max_staleness": max_staleness}, step={"groups": 3})
    return RunAhead(folder, config, Shelf(folder, ConsumedTickets()), dropped=0, attempt=0)


def told(run_ahead: RunAhead, folder: RunFolder) -> int | None:
    run_ahead.tell(set(), finished=True)  # said at once
    hint = folder.hint()
    assert hint is not None
    return hint.limit_ticket


@pytest.mark.spec("A-099")
def test_until_a_group_has_finished_one_may_start(folder: RunFolder):
    assert told(begun(folder, 2), folder) == 1


@pytest.mark.spec("A-096", "A-097", "A-100")
@pytest.mark.parametrize(("max_staleness", "limit"), [(1, 3), (2, 6), (4, 12)])
def test_before_the_first_step_the_allowance_is_of_full_steps_of_groups_as_long_as_those_seen(
    folder: RunFolder, max_staleness: int, limit: int
):
    run_ahead = begun(folder, max_staleness)
    for ticket, lengths in enumerate((SHORT, LONG)):
        publish(folder, a_group(ticket, lengths=lengths), (1.0, 0.0))
    # A step takes 3 x 18 tokens; 13 + 23 are queued, and each group to come counts 18.
    assert told(run_ahead, folder) == limit


@pytest.mark.spec("A-096")
def test_after_a_step_the_allowance_is_of_the_tokens_that_it_consumed(folder: RunFolder):
    run_ahead = begun(folder, 2)
    publish(folder, a_group(0, lengths=SHORT), (1.0, 0.0))
    assert told(run_ahead, folder) == 6
    run_ahead.step_consumed([scored_from_arrow(folder.scored.demand(0))] * 2, dropped=0)
    # 2 x 26 tokens are allowed: four groups of 13.
    assert told(run_ahead, folder) == 4
