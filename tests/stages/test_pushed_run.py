"""Runs whose learner pushes its weights into servers: what is sampled under them is labelled right, and failures cost time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.audit import verify
from agrpo.config import resolve
from agrpo.errors import ProbeMismatch
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.turns import Turns
from agrpo.records.turns import LearnerTurn
from agrpo.resuming import take_up
from agrpo.weights import nccl
from agrpo.weights.servers import Server as Told
from tests.stages.vllm_runs import all_dones, begin, events_of, groups_of, largest_difference
from tests.stages.walk import Walk, walk
from tests.vllm_like import Do, Options, Server
from tests.weights.gloo import Forgetful, GlooSender, can_receive

RELOAD = "/collective_rpc"


@pytest.fixture
def servers(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    """Two that take weights over gloo, and a learner that sends them so."""
    monkeypatch.setattr(nccl, "NcclSender", GlooSender)
    options = Options(weight_transfer="nccl", block_size=4, step_seconds=0.005)
    with Server(tiny_model, options) as one, Server(tiny_model, options) as other:
        yield [can_receive(one), can_receive(other)]


@pytest.fixture
def folder(servers: list[Server], tmp_path: Path) -> RunFolder:
    """A run of six steps over them."""
    return begin(servers, tmp_path, stop={"max_steps": 6}, asynchronous={"max_staleness": 2})


def versions(folder: RunFolder, kind: str) -> list[int]:
    """Of the events of a kind."""
    return [event.payload["version"] for event in events_of(folder, kind)]


def is_balanced(folder: RunFolder) -> bool:
    """Whether every token was sampled by the version that its label says, six steps were trained, and the books balance."""
    return len(all_dones(folder)) == 6 and largest_difference(folder) < 1e-4 and verify(folder).balances


@pytest.mark.spec("A-091", "A-188")
def test_a_run_whose_weights_are_pushed_has_no_server_read_a_folder(folder: RunFolder, servers: list[Server]):
    walk(folder)
    assert [server.asked(RELOAD) for server in servers] == [[], []]
    assert versions(folder, "pushed") == [0, 1, 2, 3, 4, 5, 6]
    assert {event.payload["transport"] for event in events_of(folder, "weights_transport")} == {"nccl"}
    assert [server.service.scheduler.label.partition("@")[0] for server in servers] == ["6", "6"]
    assert is_balanced(folder)
    acknowledged = {version for engine in folder.engines() for version in folder.acknowledgements(engine)}
    sampled = {v for g in groups_of(folder) for r in g.rollouts for turn in r.turns for v in turn.output_versions}
    assert sampled <= acknowledged


def test_a_lockstep_run_takes_pushes_between_its_steps(servers: list[Server], tmp_path: Path):
    folder = begin(servers, tmp_path, stop={"max_steps": 6}, asynchronous={"max_staleness": 0})
    walk(folder)
    assert [server.asked(RELOAD) for server in servers] == [[], []]
    assert versions(folder, "pushed") == [0, 1, 2, 3, 4, 5, 6]
    assert is_balanced(folder)
    assert {sample.staleness for done in all_dones(folder) for sample in done.samples} == {0}


def test_a_server_that_keeps_its_weights_and_says_otherwise_ends_the_run_with_both_numbers(
    folder: RunFolder, servers: list[Server]
):
    can_receive(servers[1], Forgetful)
    with pytest.raises(ProbeMismatch, match=r"was told to load version 1 and serves .* the learner -\d"):
        walk(folder)
    assert {group.model_version for group in groups_of(folder)} <= {0}
    assert 1 not in {version for engine in folder.engines() for version in folder.acknowledgements(engine)}


@pytest.mark.parametrize("path", ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update"])
def test_versions_that_were_not_pushed_are_loaded_from_their_folders_and_pushing_goes_on(
    folder: RunFolder, servers: list[Server], path: str, caplog: pytest.LogCaptureFixture
):
    servers[1].fault(Do.STATUS, path, first=3, text="CUDA error: unspecified launch failure")
    walk(folder)
    assert versions(folder, "push_failed") == [2] and versions(folder, "pushed") == [0, 1, 3, 4, 5, 6]
    assert servers[1].asked(RELOAD) and is_balanced(folder)
    [warning] = [record for record in caplog.records if "goes to the servers through its folder" in record.message]
    assert warning.levelno == logging.WARNING and "unspecified launch failure" in warning.message


def test_after_three_failures_in_a_row_nothing_is_pushed_any_more(folder: RunFolder, servers: list[Server]):
    servers[1].fault(Do.STATUS, "/start_weight_update", first=2, times=None, text="CUDA error")
    walk(folder)
    assert versions(folder, "pushed") == [0] and versions(folder, "push_failed") == [1, 2, 3]
    told = events_of(folder, "weights_transport")
    assert [event.payload["transport"] for event in told] == ["nccl", "filesystem"]
    assert "3 pushes in a row have failed" in told[1].payload["reason"] and "CUDA error" in told[1].payload["reason"]
    assert len(servers[0].asked("/start_weight_update")) == 4
    assert is_balanced(folder)


@pytest.mark.parametrize("last_call", ["/pause", "/start_weight_update", "/finish_weight_update"])
def test_what_a_learner_that_was_killed_amid_a_push_leaves_is_mended_by_the_next(
    servers: list[Server], tmp_path: Path, last_call: str
):
    folder = begin(servers, tmp_path, stop={"max_steps": 3})
    walk(folder)
    label = servers[0].service.scheduler.label
    for path in ["/pause?mode=keep", "/start_weight_update", "/finish_weight_update"]:
        for server in servers:
            Told(server.url).ask("POST", path, {"weight_version": label} if "finish" in path else None, 5.0)
        if path.startswith(last_call):
            break
    Turns(folder).write(LearnerTurn(attempt=0, pushing=4, pushed=3))
    take_up(folder, resolve(values=folder.document()["settings"]["tree"], sets=["stop.max_steps=6"]))
    walk(folder)
    assert is_balanced(folder)
    assert [server.service.scheduler.label.partition("@")[0] for server in servers] == ["6", "6"]
    assert not any(server.service.scheduler.paused for server in servers)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/pause", "/update_weights", "/finish_weight_update", "/resume"])
def test_a_server_that_dies_of_a_push_is_given_the_weights_when_it_is_back(
    folder: RunFolder, servers: list[Server], path: str
):
    servers[1].fault(Do.DIE, path, first=3)
    run = Walk(folder).start("generator", "scorer", "learner")
    run.until(lambda: 2 in versions(folder, "push_failed"))
    servers[1].restart()
    can_receive(servers[1])
    run.join()
    assert 2 in versions(folder, "push_failed") and is_balanced(folder)
    assert servers[0].service.scheduler.label.partition("@")[0] == "6"
