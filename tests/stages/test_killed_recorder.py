"""Recorders that are killed: what is in is in whole, and once."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from pathlib import Path

import duckdb
import pytest

from agrpo.database.writer import Database
from agrpo.queue.run_folder import EventStream
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_attempt, add_group, add_scores, add_step, new_run
from tests.stages.killed_recorder import die_before, record_for_ever
from tests.stages.recordings import assert_each_once, count

children = multiprocessing.get_context("forkserver")
children.set_forkserver_preload(["tests.stages.killed_recorder"])

KILLS = [
    ('connection.execute("CHECKPOINT")', 1, False),
    ("os.link(draft, self.path)", 1, False),
    ("draft.unlink", 1, False),
    ("connection.begin()", 1, False),
    ("INSERT INTO", 1, False),
    ("INSERT INTO", 4, False),
    ("connection.commit()", 1, False),
    ("with self._translated(), self._open()", 2, True),  # committed, not closed
    ("ledger.add(entry)", 1, True),
]
"""Before which line of the writer, when it runs for which time, and whether the group is in by then."""


@pytest.mark.spec("K40")
def test_a_recorder_killed_at_any_point_of_its_writing_records_each_rollout_once(tmp_path):
    folder = new_run(tmp_path / "run")
    for ticket, (line, nth, is_in) in enumerate(KILLS):
        add_group(folder, ticket)
        add_scores(folder, ticket)
        process = children.Process(target=die_before, args=(folder.url, folder.database, line, nth))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, line
        _assert_whole(folder.database)
        assert (folder.database.exists() and count(folder, "groups") == ticket + 1) == is_in, line
    record_once(folder, Database(folder.database))
    assert_each_once(folder, len(KILLS))


def test_a_recorder_killed_at_random_records_each_rollout_once(tmp_path):
    folder = new_run(tmp_path / "run")
    events = EventStream(folder, "test")
    add_attempt(folder, 0)
    chance = random.Random(3)
    for ticket in range(15):
        told, child = children.Pipe()
        process = children.Process(target=record_for_ever, args=(folder.url, folder.database, child))
        process.start()
        told.recv()
        add_group(folder, ticket)
        add_step(folder, 0, ticket + 1, [ticket])
        events.write("round", attempt=0)
        time.sleep(chance.uniform(0.0, 0.06))
        process.kill()
        process.join()
        _assert_whole(folder.database)
    record_once(folder, Database(folder.database))
    assert_each_once(folder, 15)


def _assert_whole(path: Path) -> None:
    """What is in is in with all its rows, once."""
    if path.exists():
        sql = """
            SELECT (SELECT count(*) FROM ingest WHERE stream = 'groups'), (SELECT count(*) FROM groups),
                (SELECT count(DISTINCT ticket) FROM groups), (SELECT count(*) FROM rollouts)
        """
        with duckdb.connect(str(path), read_only=True) as connection:
            ((ledger, groups, tickets, rollouts),) = connection.execute(sql).fetchall()
        assert (groups, tickets, rollouts) == (ledger, ledger, 2 * ledger)
