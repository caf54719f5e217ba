"""Names that agrpo did not give, anywhere in a run: told once, not read, and left where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.queue.archive.archiving import Archiver
from agrpo.queue.checkpoints import CheckpointName, all_checkpoints
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.run_folder import RunFolder, StepKey
from tests.queue.archived_run import a_run, archived, checkpoint, each, fill, lying

FOREIGN = (
    "checkpoints/00000010-000000-kept/MANIFEST.json",
    "checkpoints/best/MANIFEST.json",
    "attempts/000000 (copy).json",
    "bases/old.json",
    "rewinds/notes.txt",
    "steps/000000/00000001-kept.plan.json",
    "versions/000000/newest.json",
    "acks/engine/mine.json",
    "events/learner/first.json",
    "groups/000000/000000000001.arrow.bak",
    "groups/kept/000000000007.arrow",
    "scored/000000/notes",
    "claims/000000/000000000001.json",
    "archive/groups/mine.parquet",
    "archive/claims/README",
)
"""What a user who looks after a run by hand may leave there."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run with two tickets and a checkpoint, in which someone has left a name of their own in every folder."""
    folder = a_run(str(tmp_path / "run"), tickets=2)
    checkpoint(folder, 0, floor=0)
    for key in FOREIGN:
        assert folder.filesystem.put(key, b"mine")
    return RunFolder.open(folder.url)


def lies(filesystem: Filesystem) -> list[bool]:
    return [filesystem.get(key) is not None for key in FOREIGN]


def test_checkpoints_are_those_with_a_step_and_an_attempt(folder: RunFolder):
    assert all_checkpoints(folder) == [CheckpointName(0, 0)]


def test_numbers_are_those_of_documents(folder: RunFolder):
    assert (folder.attempts(), list(folder.bases()), folder.rewinds()) == ([], [0], [])
    assert (folder.planned_steps(0), folder.plan(StepKey(0, 1))) == ([], None)
    assert (folder.versions(0), folder.acknowledgements("engine"), folder.event_numbers("learner")) == ([], [], [])


def test_tickets_are_those_of_the_queue_and_only_they_are_archived(folder: RunFolder):
    assert folder.groups.numbers() == folder.scored.numbers() == folder.claims.tickets(0) == [0, 1]
    assert (folder.claims.holder(1).owner, folder.claims.next_free()) == ("generator-1", 2)
    assert Archiver(folder).archive_all() == 6
    fill(folder, 2)
    assert lying(folder) == each([2])
    assert folder.groups.numbers() == [0, 1, 2]
    assert "000000000000-000000000001" in archived(folder)["groups"]
    assert lies(folder.filesystem) == [True] * len(FOREIGN)


def test_a_foreign_name_is_told_once(caplog: pytest.LogCaptureFixture, tmp_path: Path, folder: RunFolder):
    for _ in range(2):
        all_checkpoints(folder)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"{tmp_path}/run/checkpoints/{name} is none of agrpo's names: it is not read, and left where it is"
        for name in ("00000010-000000-kept", "best")
    ]


def test_nothing_is_told_of_agrpos_own_names(caplog: pytest.LogCaptureFixture, tmp_path: Path):
    folder = a_run(str(tmp_path / "run"), tickets=3)
    folder.claims.take(2, owner="again", base=0, number_try=1)
    checkpoint(folder, 1, floor=3)
    Archiver(folder).archive_all()
    assert (folder.claims.tickets(0), len(all_checkpoints(folder)), folder.attempts()) == ([0, 1, 2], 1, [])
    assert caplog.records == []
