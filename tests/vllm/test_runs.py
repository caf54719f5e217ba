"""Whole runs through a real vLLM: right to the digit, and none of it lost whatever becomes of the server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.stages.process import Supervisor
from tests.chaos.balance import balance
from tests.processes import until
from tests.stages.walk import Walk, dones
from tests.vllm.conftest import START_SECONDS, RealServer
from tests.vllm.kept import Kept, asked, of_group, one_of

pytestmark = pytest.mark.vllm

STAGES = ("generator", "scorer", "learner")
DIFFERENCE = "sampling/sampling_logp_difference/mean"


def turns_of(folder: RunFolder) -> list[list[int]]:
    """The versions of every turn's tokens."""
    groups = [group_from_arrow(folder.groups.read(ticket)) for ticket in folder.groups.numbers(0)]
    return [turn.output_versions for group in groups for rollout in group.rollouts for turn in rollout.turns]


@pytest.mark.spec("A-182")
def test_thirty_steps_at_staleness_0_train_what_was_sampled(
    vllm_run: Callable[..., RunFolder], vllm_server: RealServer, tmp_path: Path
) -> None:
    folder = vllm_run(
        tmp_path,
        engine={"serve": False, "base_urls": [vllm_server.url], "arguments": [], "max_model_len": None},
        asynchronous={"max_staleness": 0},
        stop={"max_steps": 30, "stall_seconds": 120},
    )
    Walk(folder).start(*STAGES).join()
    steps = dones(folder)
    assert len(steps) == 30
    assert max(done.metrics[DIFFERENCE] for done in steps) < 1e-5
    assert {sample.staleness for done in steps for sample in done.samples} == {0}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_outlives_the_ends_of_its_server(vllm_run: Callable[..., RunFolder], tmp_path: Path) -> None:
    folder = vllm_run(
        tmp_path,
        asynchronous={"max_staleness": 2},
        engine={"outage_seconds": 400.0},
        stop={"max_steps": 12, "stall_seconds": 400},
    )
    with Supervisor(folder.url, folder.local / "logs") as supervisor, Kept(folder, supervisor) as kept:
        run = Walk(folder).start(*STAGES)
        urls, groups = [_next_url(folder, run, 1, [])], [kept.group]
        for step, name in ((5, "EngineCore"), (9, "api_server")):
            os.kill(one_of(kept.group, name), signal.SIGKILL)
            urls.append(_next_url(folder, run, step, urls))
            assert of_group(groups[-1]) == {}, "nothing of a server outlives it"
            groups.append(kept.group)
        os.killpg(kept.group, signal.SIGSTOP)
        time.sleep(5)
        os.killpg(kept.group, signal.SIGCONT)
        run.join()
    assert [kind for kind, _ in kept.told] == ["stage_started", "stage_restarted", "stage_restarted"]
    assert "EngineError: vLLM " in kept.told[1][1]["reason"]  # it ends by itself, or refuses /health
    assert "EngineError: vLLM ended by itself, killed by signal 9" in kept.told[2][1]["reason"]
    assert len({*urls}) == 3, "each of them serves elsewhere"
    until(lambda: of_group(groups[-1]) == {}, 5)
    history = balance(folder)
    assert [plan.step for plan, _ in history] == list(range(1, 13))
    failed = [event for stream in folder.event_streams() for event in events_of(folder, stream, "rollouts_failed")]
    assert failed == []


def _next_url(folder: RunFolder, run: Walk, step: int, before: list[str]) -> str:
    """Of a server that was not there before, once as many steps are trained."""

    def is_there() -> bool:
        return len(dones(folder)) >= step and not {*before}.issuperset(folder.server_urls())

    until(lambda: run.stop.is_set() or is_there(), START_SECONDS)
    [url] = folder.server_urls()
    return url


def events_of(folder: RunFolder, stream: str, kind: str) -> list[object]:
    found = [folder.event(stream, number) for number in folder.event_numbers(stream)]
    return [event for event in found if event is not None and event.kind == kind]


@pytest.mark.spec("A-187", "A-190", "A-191", "A-192", "A-193")
@pytest.mark.timeout(600)
def test_every_rollout_ends_under_the_adapter_it_began_with(vllm_run: Callable[..., RunFolder], tmp_path: Path) -> None:
    folder = vllm_run(
        tmp_path,
        adapter={"rank": 4, "alpha": 8.0},
        asynchronous={"max_staleness": 4},
        optimizer={"learning_rate": 1e-2},
        stop={"max_steps": 12, "stall_seconds": 300},
    )
    with Supervisor(folder.url, folder.local / "logs") as supervisor:
        supervisor.start("server")
        until(folder.server_urls, START_SECONDS)
        Walk(folder).start(*STAGES).join()
        [url] = folder.server_urls()
        names = [entry["id"] for entry in asked(f"{url}/v1/models")["data"]]
    versions = turns_of(folder)
    assert all(len({*turn}) == 1 for turn in versions)
    assert len({turn[0] for turn in versions}) >= 6
    adapters = [name for name in names if "@" in name]
    assert 1 <= len(adapters) <= 6
    # What is trained by the weights that sampled it agrees; else a log-prob has moved with each update since.
    samples = [sample for done in dones(folder) for sample in done.samples]
    assert min(sample.staleness for sample in samples) == 0
    assert [one for one in samples if one.logprob_difference_mean > 0.01 + one.staleness] == []
    assert [plan.step for plan, _ in balance(folder)] == list(range(1, 13))
