"""Reported cases, replayed with whole runs over servers that speak vLLM and fail on demand."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from agrpo.config import resolve
from agrpo.errors import EngineError, EngineLost, ProbeMismatch, StoreFull
from agrpo.records.rollout import StopReason
from agrpo.records.seeds import derive_seed
from agrpo.resuming import take_up
from agrpo.weights import filesystem
from tests.stages.vllm_runs import all_dones, begin, events_of, groups_of, largest_difference
from tests.stages.walk import Walk, walk
from tests.vllm_like import Do, Options, Server

GENERATE = "/inference/v1/generate"
RELOAD = "/collective_rpc"
LOCKSTEP = {"max_staleness": 0}


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model, Options(block_size=4)) as server:
        yield server


def seed_of(ticket: int, rollout: int) -> int:
    return derive_seed(1, ticket, rollout, 0)


def asked_for(server: Server, seed: int) -> int:
    return sum(each.body["sampling_params"].get("seed") == seed for each in server.asked(GENERATE))


@pytest.mark.slow
@pytest.mark.spec("K11")
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_weights_that_take_two_seconds_to_arrive_make_nothing_staler(
    server: Server, tmp_path: Path, max_staleness: int
):
    server.fault(Do.DELAY, RELOAD, times=None, seconds=2.0)
    folder = begin([server], tmp_path, asynchronous={"max_staleness": max_staleness}, stop={"max_steps": 5})
    walk(folder)
    found = all_dones(folder)
    assert len(found) == 5
    assert max(sample.staleness for done in found for sample in done.samples) == max_staleness
    assert sum(done.metrics["sample/dropped_stale_count"] for done in found) == 0
    for done in found:
        assert {sample.staleness for sample in done.samples} <= {*range(max_staleness + 1)}


@pytest.mark.slow
@pytest.mark.spec("K12")
def test_every_publish_has_a_label_of_its_own_and_clears_the_cache_also_after_a_resume(server: Server, tmp_path: Path):
    folder = begin([server], tmp_path, asynchronous=LOCKSTEP, stop={"max_steps": 2})
    walk(folder)
    take_up(folder, resolve(values=folder.document()["settings"]["tree"], sets=["stop.max_steps=4"]))
    walk(folder)
    told = [each.body["new_version"] for each in server.asked("/update_weight_version")]
    labels = [label for label in told if label != "default"]  # so a server is called that its generator left paused
    versions = [int(label.partition("@")[0]) for label in labels]
    assert len({*labels}) == len({*versions})
    assert versions == sorted(versions)
    assert {*versions} == {*range(max(versions) + 1)} >= {*range(4)}
    assert server.service.scheduler.num_resets >= len(server.asked(RELOAD)) >= len({*versions})
    assert server.service.scheduler.prefixes.hits > 0
    assert largest_difference(folder) < 1e-4  # none of it computed from another version's K/V


@pytest.mark.slow
@pytest.mark.spec("K13")
@pytest.mark.parametrize(("times", "lost"), [(1, 0), (None, 1)])
def test_one_request_that_is_never_answered_holds_up_no_step(
    server: Server, tmp_path: Path, times: int | None, lost: int, caplog: pytest.LogCaptureFixture
):
    server.fault(Do.HANG, seed=seed_of(2, 3), times=times)
    folder = begin(
        [server],
        tmp_path,
        engine={"request_timeout_seconds": 2.0},
        asynchronous=LOCKSTEP,
        step={"groups": 4},
        stop={"max_steps": 1},
    )
    with caplog.at_level(logging.WARNING):
        walk(folder)
    (done,) = all_dones(folder)
    rollouts = [rollout for group in groups_of(folder) for rollout in group.rollouts]
    failed = [rollout for rollout in rollouts if rollout.failed]
    assert [rollout.stop_reason for rollout in failed] == [StopReason.TIMEOUT] * lost
    assert len(rollouts) == 16 == len(done.samples) + len(failed)
    assert asked_for(server, seed_of(2, 3)) == 2
    told = [event.payload for event in events_of(folder, "rollouts_failed")]
    assert [(one["ticket"], one["failed"], one["waited_seconds"] >= 4.0) for one in told] == [(2, 1, True)] * lost
    lines = [record.getMessage() for record in caplog.records if "rollouts failed after" in record.getMessage()]
    assert [line.startswith("ticket 2: 1 of 4 rollouts failed after 4.") for line in lines] == [True] * lost


@pytest.mark.spec("K16")
def test_a_prompt_that_the_server_refuses_is_asked_once_and_marked_and_the_others_go_on(server: Server, tmp_path: Path):
    for rollout in range(4):
        server.fault(Do.STATUS, seed=seed_of(1, rollout), times=None, status=400, text="this prompt is too long")
    folder = begin([server], tmp_path, stop={"max_steps": 3})
    walk(folder)
    refused = [group for group in groups_of(folder) if group.refusal]
    assert [(group.ticket, group.rollouts) for group in refused] == [(1, [])]
    assert "answered 400: this prompt is too long" in (refused[0].refusal or "")
    assert all(asked_for(server, seed_of(1, rollout)) <= 1 for rollout in range(4))
    assert len(all_dones(folder)) == 3


@pytest.mark.slow
@pytest.mark.spec("K16")
@pytest.mark.parametrize(("lost", "trained"), [([3], 3), ([1, 2, 3], 0)])
def test_rollouts_that_fail_for_good_leave_what_can_be_compared(
    server: Server, tmp_path: Path, lost: list[int], trained: int
):
    for rollout in lost:
        server.fault(Do.STATUS, seed=seed_of(1, rollout), times=None, status=500, text="this one never")
    folder = begin([server], tmp_path, engine={"outage_seconds": 3.0}, asynchronous=LOCKSTEP, stop={"max_steps": 2})
    walk(folder)
    group = groups_of(folder)[1]
    assert [rollout.index for rollout in group.rollouts if rollout.failed] == lost
    assert all("answered 500: this one never" in (group.rollouts[index].error or "") for index in lost)
    samples = [sample for done in all_dones(folder) for sample in done.samples if sample.ticket == 1]
    assert len(samples) == trained


@pytest.mark.slow
@pytest.mark.spec("K16")
def test_an_outage_longer_than_the_limit_stops_the_run_clearly(server: Server, tmp_path: Path):
    folder = begin([server], tmp_path, engine={"outage_seconds": 1.5}, stop={"max_steps": 50})
    running = Walk(folder).start("generator", "scorer", "learner")
    running.until(lambda: len(folder.groups.numbers()) >= 2)
    server.close_port()
    with pytest.raises(
        EngineLost, match=r"no vLLM server has been there for \d s, and 1.5 s is the limit.*agrpo resume"
    ):
        running.join()
    server.open_port()
    take_up(folder, resolve(values=folder.document()["settings"]["tree"], sets=["stop.max_steps=6"]))
    walk(folder)
    assert len({done.step for done in all_dones(folder)}) >= 6


@pytest.mark.slow
@pytest.mark.spec("K17")
@pytest.mark.parametrize(
    ("do", "settings", "text"),
    [
        (Do.HANG, {}, "no answer within 2 s"),
        (
            Do.STATUS,
            {"status": 500, "text": "NCCL error: unhandled system error"},
            "NCCL error: unhandled system error",
        ),
        (Do.DROP, {}, "Server disconnected"),
    ],
)
def test_a_sync_that_cannot_proceed_stops_the_run_and_the_next_one_needs_no_new_server(
    server: Server, tmp_path: Path, do: Do, settings: dict[str, Any], text: str
):
    server.fault(do, RELOAD, first=3, **settings)
    engine = {"load_seconds": 2.0}
    folder = begin([server], tmp_path, engine=engine, asynchronous=LOCKSTEP, stop={"max_steps": 4})
    began = time.monotonic()
    with pytest.raises(EngineError, match=rf"version 2 did not reach server \S+: load failed after \d\.\d s: .*{text}"):
        walk(folder)
    assert time.monotonic() - began < 60
    (first,) = [each.body["new_version"] for each in server.asked("/update_weight_version")][-1:]
    assert first.startswith("1@")
    assert (server.service.scheduler.label, server.service.scheduler.paused) == (first, False)
    take_up(folder, resolve(values=folder.document()["settings"]["tree"], sets=[]))
    walk(folder)
    assert {done.step for done in all_dones(folder)} == {1, 2, 3, 4}
    assert int(server.service.scheduler.label.partition("@")[0]) >= 3


@pytest.mark.spec("K19")
def test_fewer_or_more_completions_than_one_are_asked_for_again_or_fail_alone(server: Server, tmp_path: Path):
    server.fault(Do.CHOICES, seed=seed_of(0, 1), number=3)
    server.fault(Do.CHOICES, seed=seed_of(0, 2), number=0, times=None)
    server.fault(Do.CHOICES, seed=seed_of(1, 3), number=5, times=None)
    folder = begin([server], tmp_path, asynchronous=LOCKSTEP, stop={"max_steps": 2})
    walk(folder)
    failed = {
        (group.ticket, rollout.index): rollout.error
        for group in groups_of(folder)
        for rollout in group.rollouts
        if rollout.failed
    }
    assert failed == {
        (0, 2): "asked for one completion, the server returned 0 choices",
        (1, 3): "asked for one completion, the server returned 5 choices",
    }
    first = all_dones(folder)[0]
    expected = {(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, 2)}
    assert {(sample.ticket, sample.rollout_index) for sample in first.samples} == expected
    assert largest_difference(folder) < 1e-4


@pytest.mark.spec("K19")
def test_a_run_in_which_no_group_is_ever_answered_ends_with_an_error(server: Server, tmp_path: Path):
    folder = begin([server], tmp_path, stop={"max_steps": 4})
    running = Walk(folder).start("learner")
    running.until(lambda: folder.version(0, 0) is not None)
    for ticket in range(40):
        for rollout in range(4):
            server.fault(Do.CHOICES, seed=seed_of(ticket, rollout), number=0, times=None)
    running.start("generator", "scorer")
    with pytest.raises(EngineError, match="answered no request of 8 groups in a row, last: asked for one completion"):
        running.join()


@pytest.mark.spec("K27", "A-166")
@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 20, "top_p": 0.8},
        {"top_k": 8},
        {"top_k": 40, "min_p": 0.2, "temperature": 0.5},
    ],
)
def test_truncated_sampling_gives_an_unchanged_policy_a_ratio_of_one(
    tiny_model: Path, tmp_path: Path, sampling: dict[str, float]
):
    with Server(tiny_model, Options(return_sampling_mask=True)) as server:
        folder = begin([server], tmp_path, engine=sampling, asynchronous=LOCKSTEP, stop={"max_steps": 2})
        walk(folder)
    turns = [turn for group in groups_of(folder) for rollout in group.rollouts for turn in rollout.turns]
    assert all(
        token in candidates and 1 <= len(candidates) <= sampling["top_k"]
        for turn in turns
        for token, candidates in zip(turn.output_ids, turn.output_sampling_mask or [], strict=True)
    )
    assert largest_difference(folder) < 1e-4
    assert max(done.metrics["sampling/sampling_logp_difference/max"] for done in all_dones(folder)) < 1e-4


@pytest.mark.slow
@pytest.mark.spec("K35")
def test_seeds_and_texts_are_the_same_over_two_replicas_after_a_resume(tiny_model: Path, tmp_path: Path):
    with Server(tiny_model) as one, Server(tiny_model) as other:
        whole = begin([one, other], tmp_path / "whole", asynchronous=LOCKSTEP, stop={"max_steps": 4})
        walk(whole)
        assert min(len(server.asked(GENERATE)) for server in (one, other)) > 4
        parted = begin([one], tmp_path / "parted", asynchronous=LOCKSTEP, stop={"max_steps": 2})
        walk(parted)
        take_up(parted, resolve(values=parted.document()["settings"]["tree"], sets=["stop.max_steps=4"]))
        walk(parted)
    seeds, again = (
        {(group.ticket, rollout.index): rollout.seed for group in groups_of(folder) for rollout in group.rollouts}
        for folder in (whole, parted)
    )
    assert seeds == again
    assert len({*seeds.values()}) == len(seeds) == 32
    texts, same = (
        [rollout.completion_ids for group in groups_of(folder)[:2] for rollout in group.rollouts]
        for folder in (whole, parted)
    )
    assert texts == same
    assert len({tuple(text) for text in texts}) == 8


@pytest.mark.spec("K10")
def test_a_server_that_answers_and_keeps_the_weights_it_had_stops_the_run_with_both_numbers(
    server: Server, tmp_path: Path
):
    server.fault(Do.OLD_WEIGHTS, RELOAD, first=2, times=None)
    folder = begin([server], tmp_path, asynchronous=LOCKSTEP, optimizer={"learning_rate": 0.1})
    with pytest.raises(
        ProbeMismatch, match=r"told to load version 1 and serves .*log-prob of -\d+\.\d+.*learner -\d+\.\d+"
    ):
        walk(folder)
    assert {group.model_version for group in groups_of(folder)} == {0}


def test_a_disk_that_is_full_in_the_middle_of_a_publish_leaves_servers_the_version_before(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save = filesystem.save_tensors

    def save_until_full(tensors: Any, file: Path, *metadata: Any) -> None:
        if file.name == filesystem.TIED and len(server.asked(RELOAD)) == 2:
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save(tensors, file, *metadata)

    folder = begin([server], tmp_path, asynchronous=LOCKSTEP, stop={"max_steps": 3})
    monkeypatch.setattr(filesystem, "save_tensors", save_until_full)
    with pytest.raises(
        StoreFull, match=r"cannot write \S+/weights/\S+: no space left on its disk.*`agrpo resume` this run"
    ):
        walk(folder)
    assert (server.service.scheduler.label[:2], server.service.scheduler.paused) == ("1@", False)
    monkeypatch.undo()
    take_up(folder, resolve(values=folder.document()["settings"]["tree"], sets=[]))
    walk(folder)
    assert {done.step for done in all_dones(folder)} == {1, 2, 3}


@pytest.mark.slow
def test_a_server_that_is_started_again_mid_run_is_given_the_weights_and_no_rollout_is_lost(
    server: Server, tmp_path: Path
):
    folder = begin([server], tmp_path, asynchronous={"max_staleness": 1}, stop={"max_steps": 8})
    running = Walk(folder).start("generator", "scorer", "learner")
    running.until(lambda: len(folder.groups.numbers()) >= 4)
    threading.Thread(target=server.restart, args=(Options(step_seconds=0.01),)).start()
    running.join()
    assert len(all_dones(folder)) == 8
    assert not [rollout for group in groups_of(folder) for rollout in group.rollouts if rollout.failed]
    assert largest_difference(folder) < 1e-4


@pytest.mark.slow
@pytest.mark.spec("K16")
def test_a_port_that_is_closed_for_three_seconds_costs_a_run_no_prompt(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    folder = begin([server], tmp_path, asynchronous={"max_staleness": 1}, stop={"max_steps": 12})
    server.restart(Options(step_seconds=0.03))
    running = Walk(folder).start("generator", "scorer", "learner")
    with caplog.at_level(logging.WARNING):
        running.until(lambda: len(folder.groups.numbers()) >= 4)
        server.close_port()
        time.sleep(3.0)
        server.open_port()
        running.join()
    assert len(all_dones(folder)) == 12
    trained = Counter((sample.ticket, sample.rollout_index) for done in all_dones(folder) for sample in done.samples)
    assert set(trained.values()) == {1}
    assert sorted({ticket for ticket, _ in trained}) == list(range(24))
    assert not [rollout for group in groups_of(folder) for rollout in group.rollouts if rollout.failed]
    gaps = [float(text.split("again in ")[1].split(" s")[0]) for text in caplog.messages if "again in" in text]
    assert len({*gaps}) >= 3
