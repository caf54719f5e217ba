"""Load control against a real vLLM: what its `/metrics` say becomes the cap, and is recorded with the groups."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agrpo.config import resolve
from agrpo.database.writer import Database
from agrpo.records.arrow import group_from_arrow
from agrpo.runs import prepare
from agrpo.stages import load_watch
from agrpo.stages.recorder import record_once
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged
from tests.stages.walk import dones, walk
from tests.vllm.conftest import MAX_MODEL_LEN, RealServer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.vllm

CACHE_TOKENS = 65536


@pytest.mark.spec("A-101", "A-102", "A-321", "A-322", "A-323", "A-324")
def test_a_run_keeps_to_the_cap_that_the_servers_cache_gives_and_records_its_load(
    vllm_server: RealServer,
    vllm_tree: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(load_watch, "POLL_SECONDS", 0.1)
    engine = {"serve": False, "base_urls": [vllm_server.url], "served_model": str(vllm_server.model)}
    tree = vllm_tree(
        tmp_path,
        engine={**engine, "max_completion_length": 160, "num_generations": 8},
        asynchronous={"max_staleness": 2},
        stop={"max_steps": 4},
    )
    for of_own_servers in ("arguments", "max_model_len"):
        del tree["engine"][of_own_servers]
    folder = prepare(resolve(values=tree), folder=str(tmp_path / "run"))
    walk(folder)
    record_once(folder, Database(folder.database))
    assert_sql_says_what_was_logged(folder)
    paces = [group_from_arrow(folder.groups.demand(ticket)).pace for ticket in folder.groups.numbers()]
    told = [pace for pace in paces if pace is not None and pace.num_polls]
    assert paces[0] is not None
    assert paces[0].concurrency_cap == CACHE_TOKENS // MAX_MODEL_LEN
    assert told
    assert max(pace.running_requests or 0.0 for pace in told) >= 1
    assert all(0 <= (pace.kv_cache_usage or 0.0) < 0.6 for pace in told)
    assert max(pace.kv_cache_usage or 0.0 for pace in told) > 0
    assert sum(pace.retries or 0 for pace in told) == 0
    measures = {name for done in dones(folder) for name in done.metrics}
    assert {"rollout/vllm_kv_cache_usage_frac", "rollout/vllm_preemption_count"} <= measures
