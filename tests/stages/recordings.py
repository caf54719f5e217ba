"""Recordings of runs made by hand: the stage in a thread, and what it has recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.stages import recorder
from agrpo.stages.context import StageContext
from agrpo.stages.recorder import record_once
from tests.database.synthetic import contents


@contextlib.contextmanager
def recording(folder: RunFolder) -> Iterator[None]:
    """The stage in a thread, stopped at the end of the block and waited for."""
    stop, failed = threading.Event(), []
    context = StageContext(run_url=folder.url, stage="recorder", incarnation="recorder-a", stop=stop)

    def stage() -> None:
        try:
            recorder.run(context)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=stage)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


def count(folder: RunFolder, table: str) -> int:
    return query(folder, f"SELECT count(*) AS n FROM {table}").to_pydict()["n"][0]


def assert_each_once(folder: RunFolder, num_groups: int) -> None:
    """Every group and every rollout of it is in once, and a fresh recording says the same."""
    assert (count(folder, "groups"), count(folder, "rollouts")) == (num_groups, 2 * num_groups)
    assert count(folder, "(SELECT DISTINCT ticket, rollout_index FROM rollouts)") == 2 * num_groups
    fresh = folder.database.with_name("fresh.duckdb")
    record_once(folder, Database(fresh))
    assert contents(folder.database) == contents(fresh)
