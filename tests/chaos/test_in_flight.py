"""What was generated, queued or in flight when everything was killed is trained all the same, once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.errors import StageFailed
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.runs import prepare
from agrpo.stages.process import Supervisor
from tests.chaos.balance import balance
from tests.processes import marked, until
from tests.stages.walk import settings

STAGES = ("generator", "scorer", "learner")
PROMPTS = 20


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> RunFolder:
    """One pass over twenty prompts in groups of two; completions long enough to be caught amid one."""
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(PROMPTS)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    tree = settings(
        tiny_model,
        file,
        tmp_path,
        engine={"num_generations": 2, "max_completion_length": 120, "batch_rollouts": 2},
        asynchronous={"max_staleness": 4},
        step={"groups": 2},
        stop={"max_steps": None, "epochs": 1},
        checkpoint={"every_seconds": 600.0},
    )
    return prepare(resolve(values=tree), folder=str(tmp_path / "run"))


@pytest.fixture(autouse=True)
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    yield from marked(tmp_path, monkeypatch)


def in_flight(folder: RunFolder) -> set[int]:
    """Tickets that are claimed and have no group yet."""
    return set(folder.claims.tickets(0)) - set(folder.groups.numbers())


def queued(folder: RunFolder) -> set[int]:
    """Groups that no plan has consumed."""
    return set(folder.groups.numbers()) - {ticket for plan, _ in balance(folder) for ticket in plan.consumed}


def kill_amid_work(folder: RunFolder, logs: Path) -> None:
    """Start everything, and kill it once steps are done, groups are queued and others in flight."""
    with Supervisor(folder.url, logs) as supervisor:
        stages = [supervisor.start(name) for name in STAGES]
        until(lambda: len(balance(folder)) >= 2 and queued(folder) and len(in_flight(folder)) >= 2, 120)
        for stage in stages:
            os.killpg(stage.pid, signal.SIGKILL)
        for stage in stages:
            with suppress(StageFailed):
                supervisor.wait(stage)


@pytest.mark.spec("K02")
@pytest.mark.slow
def test_prompts_in_flight_at_a_kill_are_all_trained_and_none_twice(folder: RunFolder, tmp_path: Path) -> None:
    kill_amid_work(folder, tmp_path / "logs")
    lost, kept = in_flight(folder), {ticket: bytes(folder.groups.read(ticket)) for ticket in folder.groups.numbers()}
    assert lost
    with Supervisor(folder.url, tmp_path / "logs") as supervisor:
        for stage in [supervisor.start(name) for name in STAGES]:
            supervisor.wait(stage)
    steps = balance(folder)
    groups = {ticket: group_from_arrow(folder.groups.read(ticket)) for plan, _ in steps for ticket in plan.tickets}
    assert sorted(group.prompt.id for group in groups.values()) == sorted({g.prompt.id for g in groups.values()})
    assert len(groups) + sum(len(plan.drops) for plan, _ in steps) == PROMPTS
    assert {ticket: bytes(folder.groups.read(ticket)) for ticket in kept} == kept
    assert {groups[ticket].claim_try for ticket in lost & groups.keys()} == {1}
