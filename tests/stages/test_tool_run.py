"""A whole run whose policy calls tools: what it trains is what it sampled, and what is recorded adds up."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agrpo.audit.verifying import verify
from agrpo.config import ModelSection, resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.engines import Engine
from agrpo.engines.transformers import Transformers
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.records.rollout import StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from agrpo.stages.rendering import Renderer
from tests.stages.playing import END, call_of
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged, logged
from tests.stages.walk import LOCKSTEP, dones, settings, walk

TOOLS = {"functions": ["tests.tools.functions:add", "tests.tools.functions:divide"], "max_tool_calling_iterations": 2}
LINES = [call_of("add", a=1, b=2), call_of("divide", a=1, b=0), call_of("oh"), "<tool_call>oh", "12", "7 and 5", "3"]


class Prompted:
    """An engine of real weights whose words are chosen by the request's seed: log-probs and versions are the weights' own."""

    def __init__(self, engine: Engine, model: Path) -> None:
        self.engine = engine
        self.encode = Renderer(ModelSection(path=str(model))).encode
        self.version = -1
        self.next_token_logprobs, self.close = engine.next_token_logprobs, engine.close
        self.pressure, self.dtype, self.behind, self.keeps_deadlines = engine.pressure, engine.dtype, False, False

    async def load(self, folder: Path, version: int) -> None:
        await self.engine.load(folder, version)
        self.version = version

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        return [await self._turn(request) for request in requests]

    def words(self, request: CompletionRequest) -> str:
        """What it says to a request."""
        return random.Random(request.seed).choice(LINES)

    async def _turn(self, request: CompletionRequest) -> TurnRecord:
        ids = [*self.encode(self.words(request)), END]
        whole = request.prompt_ids + ids
        places = range(len(request.prompt_ids), len(whole))
        logprobs = [(await self.engine.next_token_logprobs(whole[:place], [whole[place]]))[0][0] for place in places]
        return TurnRecord(
            prompt_ids=request.prompt_ids,
            output_ids=ids,
            output_log_probs=logprobs,
            output_versions=[self.version] * len(ids),
            stop_reason=StopReason.STOP,
        )


def tool_run(model: Path, place: Path, monkeypatch: pytest.MonkeyPatch, *, steps: int = 2, **tables: Any) -> RunFolder:
    """Steps in lockstep of two groups of three rollouts."""
    started = Transformers.__call__
    monkeypatch.setattr(
        Transformers, "__call__", lambda part, model, needs: Prompted(started(part, model, needs), Path(model.path))
    )
    place.mkdir()
    prompts = place / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": [{"role": "user", "content": f"{n}+1 ="}]}) for n in range(8)))
    engine = {**LOCKSTEP["engine"], "num_generations": 3, "max_completion_length": 100}
    tree = settings(
        model,
        prompts,
        place,
        tools=TOOLS,
        loss={"name": "clip"},
        engine=engine,
        asynchronous=LOCKSTEP["asynchronous"],
        stop={"max_steps": steps, "stall_seconds": 300},
        **tables,
    )
    folder = prepare(resolve(values=tree))
    walk(folder)
    return folder


@pytest.mark.spec("A-247")
def test_a_run_trains_what_was_sampled_and_its_books_balance(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tool_run(tiny_model, tmp_path / "run", monkeypatch)
    record_once(folder, Database(folder.database))
    assert_sql_says_what_was_logged(folder)
    measures = logged(folder)
    assert measures[1, "rollout/turns_max"] > 1
    assert measures[1, "rollout/fork_frac"] == 0
    for step in (1, 2):
        assert measures[step, "sampling/sampling_logp_difference/max"] < 1e-4
    counted = query(
        folder.database, "SELECT sum(tool_call_count) AS num, sum(tool_failure_count) AS failed FROM rollouts"
    )
    rows = query(folder.database, "SELECT count(*) AS num, count(failure) AS failed FROM tool_calls")
    assert counted.to_pylist() == rows.to_pylist()
    assert {"malformed", "raised", "unknown_name", "refused", None} == {
        *query(folder.database, "SELECT DISTINCT failure FROM tool_calls").to_pydict()["failure"]
    }
    assert verify(folder, deep=True).findings == []


@pytest.mark.slow
def test_a_run_with_tools_repeats_bit_for_bit(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = (tool_run(tiny_model, tmp_path / name, monkeypatch) for name in ("one", "two"))
    assert [done.digest for done in dones(first)] == [done.digest for done in dones(second)]
    for ticket in range(4):
        groups = [group_from_arrow(folder.groups.demand(ticket)) for folder in (first, second)]
        assert groups[0].completions == groups[1].completions
