"""A learner that finds its groups in the archive alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agrpo.errors import StoreLostWrites
from agrpo.queue.archive.archiving import Archiver
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.runs import go_back
from tests.queue.archived_run import each, lying
from tests.stages.walk import LOCKSTEP, Walk, dones, walk


def archived(folder: RunFolder) -> RunFolder:
    Archiver(folder).archive_all()
    assert lying(folder) == each([])
    return RunFolder.open(folder.url)


@pytest.fixture
def archived_run(begin: Callable[..., RunFolder]) -> RunFolder:
    """A run to its end, without its checkpoints, whose queue was archived."""
    folder = begin(**LOCKSTEP)
    walk(folder)
    archived(folder)
    for name in ("checkpoints", "hint"):
        folder.filesystem.delete(name)
    return RunFolder.open(folder.url)


def replayed(folder: RunFolder) -> list[int]:
    events = [folder.event(stream, n) for stream in folder.event_streams() for n in folder.event_numbers(stream)]
    return [event.payload["step"] for event in events if event.kind == "replayed"]


def test_every_step_is_replayed_from_the_archive_to_the_weights_it_had(archived_run: RunFolder):
    claimed = archived_run.claims.next_free()
    walk(archived_run)
    assert replayed(archived_run) == [1, 2, 3, 4]
    assert archived_run.claims.next_free() == claimed
    assert lying(archived_run) == each([])


@pytest.mark.parametrize("queue", ["groups", "scored"])
def test_a_missing_archive_stops_the_replay_and_is_named(archived_run: RunFolder, queue: str):
    archived_run.filesystem.delete(f"archive/{queue}")
    with pytest.raises(StoreLostWrites, match=rf"{queue}.* archive"):
        Walk(archived_run).start("learner").join()  # a scorer would judge the groups again


def test_a_run_goes_back_to_archived_groups_as_to_those_in_the_queue(begin: Callable[..., RunFolder]):
    futures = []
    for is_archived in (False, True):
        folder = begin("archived" if is_archived else "kept", **LOCKSTEP)
        walk(folder)
        folder = archived(folder) if is_archived else folder
        go_back(folder, 2)
        walk(folder)
        reissued = folder.bases()[1].reissue
        plans = [folder.plan(StepKey(1, step)) for step in folder.planned_steps(1)]
        chosen = [(plan.step, plan.tickets, [drop.ticket for drop in plan.drops]) for plan in plans]
        futures.append((reissued, chosen, [done.digest for done in dones(folder, 1)]))
    assert futures[0] == futures[1]
    assert [step for step, _, _ in futures[0][1]] == [3, 4]
