"""A run in which groups are trained, lost, filtered and grow stale: all of them are found again, and none when it is too late."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.engines.transformers import Transformers
from agrpo.errors import EngineError
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.records.seeds import derive_seed
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.processes import until
from tests.stages.test_tool_run import Prompted
from tests.stages.test_two_generators import publish_uniform
from tests.stages.walk import Walk, dones, settings

SIZE, SEED = 3, 1
STALE, ERRORED, FILTERED = 1, 4, 5
MAX_STALENESS = 2
BY_STATUS = "SELECT status, reason, count(*) AS num FROM group_status GROUP BY ALL ORDER BY num DESC, reason"
WHOLE_STORY = """
    SELECT r.ticket, r.rollout_index, len(g.prompt::VARCHAR) > 2 AS asked, len(r.completion_ids) AS ids,
        len(t.output_log_probs) AS logprobs, w.name, w.value, w.error AS unjudged, r.model_version, r.attempt, r.status,
        r.reason, r.error, g.finished_at >= g.claimed_at AS timed
    FROM rollouts_with_rewards AS r JOIN groups AS g USING (ticket)
    LEFT JOIN rewards AS w USING (ticket, rollout_index) LEFT JOIN turns AS t USING (ticket, rollout_index)
    ORDER BY r.ticket, r.rollout_index
"""


class Fated(Prompted):
    """Real weights; one group is lost, one says the same throughout, one is answered by weights that are long gone."""

    release = threading.Event()
    """Without it the late group is not answered."""

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        places = {derive_seed(SEED, ticket, index, 0): (ticket, index) for ticket in range(6) for index in range(SIZE)}
        ticket, index = places[requests[0].seed]
        if ticket == ERRORED:
            raise EngineError("the server is gone")
        self.line = "same" if ticket == FILTERED else "a b c d e f"[: 2 * index + 1]
        turns = [await self._turn(request) for request in requests]
        while ticket == STALE and not (self.release.is_set() and self.version > MAX_STALENESS):
            await asyncio.sleep(0.01)
        return turns

    def words(self, request: CompletionRequest) -> str:
        return self.line


@pytest.fixture
def six(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of six prompts, one group a step."""
    started = Transformers.__call__
    monkeypatch.setattr(
        Transformers, "__call__", lambda part, model, needs: Fated(started(part, model, needs), Path(model.path))
    )
    Fated.release.clear()
    return begin(
        tiny_model,
        tmp_path,
        engine={"num_generations": SIZE, "max_completion_length": 20},
        loss={"name": "clip"},
        asynchronous={"max_staleness": MAX_STALENESS},
        step={"groups": 1, "zero_variance": "drop"},
        stop={"max_steps": None, "epochs": 1},
    )


def begin(model: Path, place: Path, **tables: Any) -> RunFolder:
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{number}+1 ="}]} for number in range(6)]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    tree = settings(model, prompts, place, **tables)
    if tree["engine"]["name"] == "scripted":
        del tree["engine"]["threads"]
    return prepare(resolve(values=tree), folder=str(place / "run"))


@pytest.mark.spec("K40")
def test_one_query_tells_what_became_of_every_group_of_a_run_that_went_wrong(six: RunFolder):
    work = Walk(six).start("generator", "scorer", "learner")
    work.until(lambda: len(six.done_steps(0)) > MAX_STALENESS)
    database = Database(six.database)
    record_once(six, database)
    seen = query(six.database, BY_STATUS).to_pylist()
    assert {"status": "trained", "reason": None, "num": 3} in seen, "who asks while the run goes on is answered"
    Fated.release.set()
    work.join()
    record_once(six, database)
    assert query(six.database, BY_STATUS).to_pylist() == [
        {"status": "trained", "reason": None, "num": 3},
        {"status": "dropped", "reason": "equal_rewards", "num": 1},
        {"status": "dropped", "reason": "failed", "num": 1},
        {"status": "dropped", "reason": "stale", "num": 1},
    ]
    story = query(six.database, WHOLE_STORY).to_pylist()
    assert [(row["ticket"], row["rollout_index"]) for row in story] == [(t, i) for t in range(6) for i in range(SIZE)]
    assert all(row["asked"] and row["timed"] and row["attempt"] == 0 for row in story)
    for row in story:
        lost = row["ticket"] == ERRORED
        assert (row["error"], row["ids"]) == ("the server is gone", 0) if lost else row["error"] is None
        assert (row["value"] is None) == lost
        assert lost or row["ids"] == row["logprobs"] > 0
    assert {row["reason"] for row in story if row["ticket"] == STALE} == {"stale"}
    assert min(row["model_version"] for row in story if row["ticket"] == STALE) == 0
    assert len(dones(six)) >= 3


@pytest.mark.spec("K40")
def test_a_group_whose_generator_is_killed_right_after_it_is_recorded_whole(tiny_model: Path, tmp_path: Path):
    folder = begin(tiny_model, tmp_path, engine={"name": "scripted", "delay_seconds": 0.2})
    publish_uniform(folder)
    folder.write_hint(Hint(limit_ticket=6, dropped=0, floor=0, written_at=time.time()))
    with subprocess.Popen([sys.executable, "-m", "agrpo.stages", "generator", folder.url]) as stage:
        until(lambda: folder.groups.numbers() or stage.poll() is not None, 60)
        os.kill(stage.pid, signal.SIGKILL)
    assert stage.wait() == -signal.SIGKILL
    made = folder.groups.numbers()
    assert made
    record_once(folder, Database(folder.database))
    counted = query(folder.database, "SELECT ticket, count(*) AS num FROM rollouts GROUP BY ticket ORDER BY ticket")
    assert counted.to_pylist() == [{"ticket": ticket, "num": 4} for ticket in made]
