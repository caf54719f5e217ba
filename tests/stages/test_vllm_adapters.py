"""Adapters served as adapters: a name for each version, the next before the oldest goes, and the log-probs of both sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import resolve
from agrpo.errors import EngineLost
from agrpo.queue.run_folder import RunFolder
from agrpo.resuming import take_up
from tests.stages.vllm_runs import all_dones, begin, groups_of, largest_difference
from tests.stages.walk import Walk, walk
from tests.vllm_like import Options, Server

ADAPTER = {"rank": 4, "publish": "adapter"}
SERVED = Options(enable_lora=True, max_lora_rank=8, max_loras=3, runtime_lora_updating=True, block_size=4)
"""Room for the adapters of a run with a staleness of one."""


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model, SERVED) as server:
        yield server


def begun(server: Server, place: Path, steps: int) -> RunFolder:
    return begin([server], place, adapter=ADAPTER, asynchronous={"max_staleness": 1}, stop={"max_steps": steps})


def changes(server: Server) -> list[tuple[str, str]]:
    """Adapters loaded (+) and unloaded (-), in order."""
    signs = {"/v1/load_lora_adapter": "+", "/v1/unload_lora_adapter": "-"}
    return [(signs[each.path], each.body["lora_name"]) for each in list(server.requests) if each.path in signs]


@pytest.mark.spec("K12", "A-192", "A-193")
def test_every_version_has_a_name_of_its_own_and_two_are_served_at_once_also_after_a_resume(
    server: Server, tmp_path: Path
):
    folder = begun(server, tmp_path, 3)
    walk(folder)
    take_up(folder, resolve(values=folder.document()["settings"]["tree"], sets=["stop.max_steps=6"]))
    walk(folder)
    loaded = [name for sign, name in changes(server) if sign == "+"]
    numbers = [int(name.partition("@")[0]) for name in dict.fromkeys(loaded)]
    assert numbers == sorted({*numbers})  # a generator may pass one over
    assert len(numbers) >= 5
    registered: list[str] = []
    for sign, name in changes(server):
        registered = [*registered, name] if sign == "+" else [other for other in registered if other != name]
        assert 1 <= len({*registered}) <= 3
    assert largest_difference(folder) < 1e-4


def test_a_rollout_ends_under_the_version_it_began_with(tiny_model: Path, tmp_path: Path):
    with Server(tiny_model, SERVED) as server:
        server.restart(Options(**{name: getattr(SERVED, name) for name in Options.__slots__} | {"step_seconds": 0.005}))
        folder = begun(server, tmp_path, 4)
        walk(folder)
    turns = [turn for group in groups_of(folder) for rollout in group.rollouts for turn in rollout.turns]
    assert {len({*turn.output_versions}) for turn in turns} == {1}
    assert len({turn.output_versions[0] for turn in turns}) >= 3


@pytest.mark.slow
def test_a_server_that_was_started_again_is_given_the_adapter_again(server: Server, tmp_path: Path):
    folder = begun(server, tmp_path, 8)
    running = Walk(folder).start("generator", "scorer", "learner")
    running.until(lambda: len(folder.groups.numbers()) >= 6)
    server.restart()
    running.join()
    assert len(all_dones(folder)) == 8
    assert largest_difference(folder) < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_lora": False}, 'takes no adapters; start it with --enable-lora, or set adapter.publish = "merged"'),
        (
            {"runtime_lora_updating": False},
            "takes no adapters while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
        ),
        (
            {"max_lora_rank": 1},
            "takes adapters up to rank 1, adapter.rank is 4; start it with --max-lora-rank 8",
        ),
        (
            {"max_loras": 2},
            "holds 2 adapters at once, and async.max_staleness = 1 needs 3; start it with --max-loras 3",
        ),
    ],
)
def test_what_a_server_lacks_for_adapters_is_named_with_its_flag(
    tiny_model: Path, tmp_path: Path, options: dict[str, Any], message: str
):
    flags = {name: getattr(SERVED, name) for name in Options.__slots__}
    with Server(tiny_model, Options(**flags | options)) as server:
        folder = begun(server, tmp_path, 2)
        with pytest.raises(EngineLost) as raised:
            walk(folder)
        assert str(raised.value) == f"{server.url}: {message}"
