"""What the learner logged equals what SQL says of the recorded rows: one source, no second bookkeeping."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.engines import Engine
from agrpo.engines.transformers import Transformers
from agrpo.errors import EngineError
from agrpo.metrics.names import MEASURES, measure_named
from agrpo.queue.run_folder import RunFolder
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.stages.walk import dones, settings, walk

TWO_REWARDS = [
    {"name": "tests.stages.judges:by_kind", "weight": 0.7},
    {"name": "tests.stages.judges:sometimes_even", "weight": 0.3},
]

Measures = dict[tuple[int, str], float]
"""By step and name."""


def recorded_run(model: Path, place: Path, kinds: Sequence[str], **tables: Any) -> RunFolder:
    """A run over one prompt of each of these kinds, walked to its end, and all of it in its database."""
    prompts = place / "prompts.jsonl"
    rows = [
        {"prompt": [{"role": "user", "content": f"{'7' * 60 * (kind == 'long')}{number}+1 ="}], "kind": kind}
        for number, kind in enumerate(kinds)
    ]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    folder = prepare(resolve(values=settings(model, prompts, place, **tables) | {"rewards": TWO_REWARDS}))
    walk(folder)
    record_once(folder, Database(folder.database))
    return folder


def logged(folder: RunFolder) -> Measures:
    return {(done.step, name): value for done in dones(folder) for name, value in done.metrics.items()}


def asked(folder: RunFolder, view: str) -> Measures:
    rows = query(folder.database, f"SELECT step, name, value FROM {view}").to_pylist()
    return {(row["step"], row["name"]): row["value"] for row in rows}


def assert_sql_says_what_was_logged(folder: RunFolder) -> None:
    expected, found = logged(folder), asked(folder, "step_metrics")
    assert asked(folder, "live_metrics") == expected
    assert found.keys() == expected.keys()
    for (step, name), value in found.items():
        tolerance = 5e-6 if name == "sample/time_in_queue_s" else 1e-6  # times are stored in whole microseconds
        assert value == pytest.approx(expected[step, name], abs=tolerance, rel=1e-9), (step, name)


@pytest.mark.spec(
    "A-282", "A-283", "A-284", "A-285", "A-286", "A-291", "A-293", "A-295", "A-296", "A-297", "A-298", "A-300"
)
@pytest.mark.spec("A-302", "A-303", "A-304", "A-305", "A-306", "A-335", "A-337", "A-338", "A-339")
def test_every_logged_measure_equals_sql_over_the_steps_rows(tiny_model: Path, tmp_path: Path):
    folder = recorded_run(
        tiny_model,
        tmp_path,
        ["plain"] * 12,
        asynchronous={"max_staleness": 2},
        engine={"max_completion_length": 3},
        optimizer={"learning_rate": 3e-2},
        stop={"max_steps": 5},
    )
    assert_sql_says_what_was_logged(folder)
    assert {name for _, name in logged(folder) if measure_named(name) is None} == set()


class Faulty:
    """An engine that breaks on about every tenth request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.load = engine.load
        self.next_token_logprobs = engine.next_token_logprobs
        self.pressure, self.dtype, self.behind, self.keeps_deadlines = engine.pressure, engine.dtype, False, False
        self.close = engine.close

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        if any(request.seed % 10 == 0 for request in requests):
            raise EngineError("it broke")
        return await self.engine.complete(requests)


@pytest.mark.slow
@pytest.mark.spec("K23")
def test_sixty_steps_with_drops_cuts_and_failures_are_measured_as_recorded(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started = Transformers.__call__
    monkeypatch.setattr(Transformers, "__call__", lambda part, model, needs: Faulty(started(part, model)))
    folder = recorded_run(
        tiny_model,
        tmp_path,
        ["plain", "plain", "flat", "plain", "long", "plain"],
        asynchronous={"max_staleness": 1, "weight_sync_steps": 2},
        step={"groups": 2, "micro_tokens": 48},
        optimizer={"learning_rate": 1e-2},
        stop={"max_steps": 60},
    )
    assert_sql_says_what_was_logged(folder)
    reasons = query(folder.database, "SELECT DISTINCT drop_reason FROM live_step_groups WHERE NOT trained").to_pydict()
    assert {"equal_rewards", "oversize"} <= {*reasons["drop_reason"]}
    stops = query(folder.database, "SELECT DISTINCT stop_reason FROM rollouts").to_pydict()
    assert {"stop", "length", "engine_error"} <= {*stops["stop_reason"]}
    measures = logged(folder)
    assert {step for step, _ in measures} == set(range(1, 61))
    assert sum(value for (_, name), value in measures.items() if name == "batch/dropped_oversize_count") > 0
    assert [step for step, name in sorted(measures) if name == "perf/weight_sync_s"] == list(range(3, 61, 2))
    found = {measure_named(name) for _, name in measures}
    unseen = {measure.name for measure in MEASURES if measure not in found} - {"rollout/score_block_s"}
    elsewhere = ("rollout/vllm_", "tools/", "env/", "filters/", "rollout/fork", "rollout/drift")
    assert (
        {name for name in unseen if not name.startswith(elsewhere)}
        == {
            "rollout/load_wait_s",
            "rollout/ceiling_wait_s",
            "perf/weight_sync_pause_s",
            "perf/weight_sync_barrier_s",
            "aux_loss",
        }
    )  # no servers, one process, one turn a rollout, no environment, no experts; how often the scorer is in the way is chance
