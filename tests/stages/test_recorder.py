from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import duckdb
import pytest

from agrpo.database import batch
from agrpo.database.ledger import Ledger
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.errors import DatabaseError, StoreLostWrites
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.progress import Event
from agrpo.stages import recorder
from agrpo.stages.recorder import record_once, rest_seconds, unrecorded
from tests.database.other_process import holding
from tests.database.synthetic import (
    T0,
    add_acknowledgement,
    add_attempt,
    add_group,
    add_scores,
    add_step,
    add_version,
    contents,
    new_run,
    small_run,
)
from tests.stages.killed_recorder import record_for_ever
from tests.stages.recordings import assert_each_once, recording

children = multiprocessing.get_context("forkserver")
children.set_forkserver_preload(["tests.stages.killed_recorder"])


@pytest.fixture(params=["local", "memory"])
def run_url(request, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return str(tmp_path / "run") if request.param == "local" else f"memory://{uuid4().hex}"


def test_everything_a_run_writes_is_recorded_once(run_url):
    folder = small_run(run_url)
    database = Database(folder.database)
    assert record_once(folder, database) == 23
    assert record_once(folder, database) == 0
    assert record_once(folder, Database(folder.database)) == 0
    found = {name: len(rows) for name, rows in contents(folder.database).items()}
    assert found.pop("metrics") > 20
    assert found == {
        "acknowledgements": 1,
        "attempts": 1,
        "bases": 1,
        "events": 2,
        "groups": 4,
        "ingest": 23,
        "plans": 2,
        "reward_extras": 0,
        "reward_metrics": 0,
        "rewards": 8,
        "rewinds": 0,
        "rollouts": 8,
        "runs": 1,
        "samples": 4,
        "schema_info": 1,
        "scored_groups": 4,
        "scores": 8,
        "step_groups": 3,
        "step_rows": 4,
        "steps": 2,
        "tool_calls": 0,
        "turns": 8,
        "versions": 1,
        "whatif_groups": 0,
        "whatif_rollouts": 0,
        "whatif_runs": 0,
    }


def test_a_deleted_database_is_rebuilt_with_the_same_rows(run_url):
    folder = small_run(run_url)
    for _ in range(2):
        record_once(folder, Database(folder.database))
        add_step(folder, 0, 3)
        record_once(folder, Database(folder.database))
    before = contents(folder.database)
    folder.database.unlink()
    record_once(folder, Database(folder.database))
    assert contents(folder.database) == before


def test_a_database_deleted_under_the_recorder_is_rebuilt_by_its_next_pass(run_url):
    folder = small_run(run_url)
    database = Database(folder.database)
    record_once(folder, database)
    before = contents(folder.database)
    folder.database.unlink()
    assert record_once(folder, database) == 23
    assert contents(folder.database) == before


def test_only_what_is_new_is_read(run_url):
    folder = small_run(run_url)
    database = Database(folder.database)
    record_once(folder, database)
    add_group(folder, 4)
    add_step(folder, 0, 3)
    entries = [entry for stream in unrecorded(folder, database.ledger()) for entry in stream.entries]
    assert entries == [("claims", 4), ("groups", 4), ("plans/0", 3), ("steps/0", 3)]


def add_some_more(folder: RunFolder) -> None:
    """One more of each kind of record."""
    add_group(folder, 4)
    add_scores(folder, 3 + 1)
    add_step(folder, 0, 3, [3])
    add_attempt(folder, 1, parent=0, base_step=3)
    add_step(folder, 1, 4, [4])
    add_version(folder, 2)
    add_version(folder, 3)
    add_acknowledgement(folder, 3)
    folder.write_event(Event(stream="learner-a", number=2, kind="odd", at=T0))
    folder.write_event(Event(stream="learner-b", number=0, kind="started", at=T0))


def test_following_the_streams_finds_what_listing_the_folder_finds(run_url):
    folder = small_run(run_url)
    database = Database(folder.database)
    record_once(folder, database)
    add_some_more(folder)
    assert record_once(folder, database, whole=False) == 13
    record_once(folder, database, whole=False)  # an acknowledgement of a version that was new itself
    fresh = folder.database.with_name("fresh.duckdb")
    record_once(folder, Database(fresh))
    assert contents(folder.database) == contents(fresh)


def test_a_look_costs_the_same_after_many_steps(monkeypatch):
    folder, costs = new_run(f"memory://{uuid4().hex}"), []
    add_attempt(folder, 0)
    events, ledger, cost = EventStream(folder, "learner-a"), Ledger(), Counter()
    for name in ("list", "get"):
        monkeypatch.setattr(folder.filesystem, name, counted(getattr(folder.filesystem, name), cost))
    for step in range(1, 101):
        add_step(folder, 0, step)
        add_version(folder, step)
        add_acknowledgement(folder, step)
        events.write("published")
        if step in (10, 100):
            for stream in unrecorded(folder, ledger):
                for entry in stream.entries:
                    ledger.add(entry)
            cost.clear()
            assert unrecorded(folder, ledger, whole=False) == []
            costs.append(cost["names"])
    assert costs[0] == costs[1]


def counted(act: Callable[[str], Any], cost: Counter[str]) -> Callable[[str], Any]:
    """The same, with the names it looks at counted."""

    def look(key: str) -> Any:
        found = act(key)
        cost["names"] += len(found) if isinstance(found, list) else 1
        return found

    return look


def test_an_engine_that_is_gone_is_not_asked_for_every_version_since(run_url):
    folder, ledger = new_run(run_url), Ledger()
    add_attempt(folder, 0)
    add_acknowledgement(folder, 1)
    for version in range(200):
        add_version(folder, version)
    for stream in unrecorded(folder, ledger):
        for entry in stream.entries:
            ledger.add(entry)
    assert unrecorded(folder, ledger, whole=False) == []
    add_acknowledgement(folder, 199)
    (stream,) = unrecorded(folder, ledger, whole=False)
    assert stream.entries == [("acknowledgements/generator-a", 199)]


def test_the_recorder_rests_longer_after_a_costly_pass_but_never_long():
    assert [rest_seconds(2.0, spent) for spent in (0.001, 0.1, 9.0)] == [2.0, 5.0, 10.0]
    assert rest_seconds(60.0, 0.1) == 60.0


def test_transactions_are_bounded_and_each_leaves_groups_before_scores(tmp_path, monkeypatch):
    folder = small_run(tmp_path / "run")
    monkeypatch.setattr(batch, "MOST_ROWS", 2)
    sizes = []

    class Watched(Database):
        def append(self, tables, entries):
            sizes.append(len(entries))
            done = super().append(tables, entries)
            assert query(self.path, "FROM scored_groups ANTI JOIN groups USING (ticket)").num_rows == 0
            assert query(self.path, "FROM steps ANTI JOIN plans USING (attempt, step)").num_rows == 0
            return done

    assert record_once(folder, Watched(folder.database)) == 23
    assert sizes == [2] * 3 + [1] * 11 + [2] * 3


def test_what_is_written_before_the_stop_is_in_after_it(run_url):
    folder = new_run(run_url)
    with recording(folder):
        for ticket in range(5):
            add_group(folder, ticket)
    assert_each_once(folder, 5)


def test_the_recorder_says_that_it_lives(run_url):
    folder = new_run(run_url)
    with recording(folder):
        while not folder.beats():
            time.sleep(0.01)
    assert [(beat["stage"], beat["waiting_for"]) for beat in folder.beats()] == [("recorder", None)]


def test_the_stage_as_a_process_lets_others_go_first_and_records_all_before_it_ends(tmp_path):
    folder = new_run(tmp_path / "run")
    command = [sys.executable, "-m", "agrpo.stages", "recorder", folder.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not folder.beats():
            time.sleep(0.01)
        for ticket in range(3):
            add_group(folder, ticket)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + recorder.NICENESS
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert_each_once(folder, 3)


def test_top_tokens_are_in_where_the_run_asks_for_them(tmp_path):
    for topk in (False, True):
        folder = new_run(tmp_path / f"{topk}", topk=topk)
        add_group(folder, 0)
        with recording(folder):
            pass
        found = query(folder, "SELECT top_ids FROM turns WHERE rollout_index = 1").to_pydict()["top_ids"]
        assert found == [[[4, 99], [1, 99]] if topk else None]


def test_anyone_reads_between_commits(tmp_path):
    folder = new_run(tmp_path / "run", every_seconds=0.01)
    add_group(folder, 0)
    record_once(folder, Database(folder.database))
    told, child = children.Pipe()
    process = children.Process(target=record_for_ever, args=(folder.url, folder.database, child))
    process.start()
    told.recv()
    for ticket in range(1, 4):
        add_group(folder, ticket)
        seen = 0
        while seen < ticket + 1:
            with (
                contextlib.suppress(duckdb.IOException),
                duckdb.connect(str(folder.database), read_only=True) as reader,
            ):
                ((seen,),) = reader.execute("SELECT count(*) FROM groups").fetchall()
    process.kill()
    process.join()
    assert_each_once(folder, 4)


def test_a_reader_that_stays_delays_the_recorder_and_loses_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.0)
    folder = new_run(tmp_path / "run")
    record_once(folder, Database(folder.database))
    with holding(folder.database, "read") as reader:
        with recording(folder):
            add_group(folder, 0)
            while not caplog.records:
                time.sleep(0.01)
            assert f"held open by process {reader.pid}" in caplog.messages[0]
            reader.kill()
    assert_each_once(folder, 1)


def test_a_database_still_locked_at_the_end_is_said_with_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(recorder, "LAST_PASS_SECONDS", 0.0)
    folder = new_run(tmp_path / "run")
    record_once(folder, Database(folder.database))
    add_group(folder, 0)
    with holding(folder.database, "read") as reader:
        with pytest.raises(
            DatabaseError, match=rf"records of the run .* not recorded .* process {reader.pid} .*They are safe"
        ):
            with recording(folder):
                pass


def test_a_slot_that_is_listed_and_gone_is_an_error(tmp_path):
    folder = new_run(tmp_path / "run")
    add_group(folder, 0)
    (stream,) = [s for s in unrecorded(folder, Database(folder.database).ledger()) if s.entries[0].stream == "groups"]
    folder.filesystem.delete(folder.groups.key(0))
    with pytest.raises(StoreLostWrites, match=r"groups 0 was listed in .* and is gone"):
        stream.add(batch.Batch(), 0)
