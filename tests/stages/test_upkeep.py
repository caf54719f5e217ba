"""Upkeep: the recorder's process keeps a run's folder small, whatever becomes of the database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.database.writer import Database
from agrpo.errors import StoreFull
from agrpo.queue.archive import archiving
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint
from agrpo.stages import recorder, upkeep
from agrpo.stages.context import StageContext
from agrpo.stages.recorder import record_once
from tests.database.other_process import holding
from tests.database.synthetic import add_attempt, add_group, add_scores, contents, new_run
from tests.queue.archived_run import archived, checkpoint, each, lying
from tests.stages.recordings import assert_each_once, count, recording


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tickets a file, and no long rests."""
    monkeypatch.setattr(archiving, "TICKETS_PER_FILE", 4)
    monkeypatch.setattr(upkeep, "SECONDS", 0.01)
    monkeypatch.setattr(upkeep, "SHARE", 1.0)
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.0)


def filled(place: Path, tickets: int = 10, **store: int) -> RunFolder:
    """Groups claimed, generated and scored, all of them consumed, in checkpoints that say so."""
    tree = {"run": {"name": "small"}, "recorder": {"every_seconds": 0.01}, "store": store}
    document = {"settings": {"tree": tree, "origins": {}}, "config_digest": "c0ffee"}
    folder = RunFolder.create(str(place), document)
    add_attempt(folder, 0)
    for ticket in range(tickets):
        add_group(folder, ticket)
        add_scores(folder, ticket)
    checkpoint(folder, 1, floor=9)
    checkpoint(folder, 2, floor=tickets)
    return folder


def finished(folder: RunFolder) -> None:
    folder.write_hint(Hint(limit_ticket=None, dropped=0, floor=10, finished=True))


def until(so: Callable[[], bool]) -> None:
    for _ in range(6000):
        if so():
            return
        time.sleep(0.01)
    raise AssertionError("what the test waits for did not come about")


def test_groups_are_archived_while_a_run_goes_on_and_all_of_them_once_it_has_ended(tmp_path: Path):
    folder = filled(tmp_path / "run")
    with recording(folder):
        until(lambda: lying(folder) == each([8, 9]))
        finished(folder)
    assert lying(folder) == each([])
    assert archived(folder)["scored"][-1] == "000000000008-000000000009"
    assert_each_once(folder, 10)


def test_a_run_that_was_only_stopped_keeps_its_queue(tmp_path: Path):
    folder = filled(tmp_path / "run")
    with recording(folder):
        until(lambda: lying(folder) == each([8, 9]))
    assert lying(folder) == each([8, 9])


def test_a_reader_that_stays_holds_no_archiving_up(tmp_path: Path):
    folder = filled(tmp_path / "run")
    record_once(new_run(tmp_path / "other"), Database(folder.database))
    with holding(folder.database, "read") as reader:
        with recording(folder):
            until(lambda: lying(folder) == each([8, 9]))
            reader.kill()
    assert count(folder, "groups") == 10


@pytest.mark.parametrize("damage", ["deleted", "damaged"])
def test_neither_does_a_database_that_is_gone_or_damaged(tmp_path: Path, damage: str):
    folder = filled(tmp_path / "run")
    folder.database.write_bytes(b"no database" * 1000)
    with recording(folder):
        until(lambda: lying(folder) == each([8, 9]))
        if damage == "deleted":
            folder.database.unlink()
        else:
            folder.database.rename(folder.database.with_suffix(".damaged"))
    assert_each_once(folder, 10)


def test_a_database_built_from_the_archive_is_the_one_built_from_the_queue(tmp_path: Path):
    folder = filled(tmp_path / "run")
    record_once(folder, Database(tmp_path / "from_queue.duckdb"))
    finished(folder)
    with recording(folder):
        pass
    assert lying(folder) == each([])
    record_once(folder, Database(tmp_path / "from_archive.duckdb"))
    assert contents(tmp_path / "from_archive.duckdb") == contents(tmp_path / "from_queue.duckdb")


def test_a_run_that_takes_more_than_it_may_ends_with_what_it_takes_and_all_of_it_whole(tmp_path: Path):
    folder = filled(tmp_path / "run", max_bytes=50_000)
    stop = threading.Event()
    context = StageContext(run_url=folder.url, stage="recorder", incarnation="recorder-a", stop=stop)
    with pytest.raises(StoreFull, match=r"run takes .* MB \(run\.duckdb .*may take 50 kB \(store.max_bytes\)"):
        recorder.run(context)
    assert count(folder, "groups") == 10
