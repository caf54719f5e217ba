"""How a learner chooses the way of its weights, and whose turn it is at the servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agrpo.config import RunConfig, load_settings
from agrpo.errors import EngineLost, MissingPackage
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.queue.turns import Turns
from agrpo.records.progress import Acknowledgement, Attempt
from agrpo.records.turns import GeneratorTurn, LearnerTurn
from agrpo.stages import pushing
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import Trainee
from agrpo.stages.keeping import Keeper
from agrpo.stages.turn_taking import TurnTaking
from agrpo.weights import nccl
from tests.runs.made import a_machine
from tests.stages.vllm_runs import begin, events_of
from tests.vllm_like import Options, Server
from tests.weights.gloo import GlooSender, can_receive

Begun = Callable[..., RunFolder]


class WithoutVllm(GlooSender):
    """Of a learner on a GPU whose environment has no vLLM."""

    def obstacle(self) -> str | None:
        return nccl.INSTALL


@pytest.fixture
def server(tiny_model: Path) -> Iterator[Server]:
    with Server(tiny_model, Options(weight_transfer="nccl")) as server:
        yield can_receive(server)


@pytest.fixture
def begun(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begun:
    """`begun(options, **engine)`: a run over the server, started with these options, whose learner could send."""
    monkeypatch.setattr(nccl, "NcclSender", GlooSender)
    monkeypatch.setattr("agrpo.runs.serving.machine_here", lambda: a_machine(64, gpus=(80,)))

    def run(options: Options | None = None, **engine: object) -> RunFolder:
        server.restart(options)
        can_receive(server)
        folder = begin([server], tmp_path, engine=engine)
        folder.write_attempt(Attempt(attempt=0, host="here", pid=1, started_at=0.0))
        return folder

    return run


def config_of(folder: RunFolder) -> RunConfig:
    return RunConfig.build(load_settings(folder.document()))


def trainee_of(config: RunConfig) -> Trainee:
    model = load_policy(config.model)
    return Trainee(model=model, optimizer=build_optimizer(model, config.optimizer))


def keeper_of(folder: RunFolder, clock: StepClock | None = None) -> Keeper:
    config = config_of(folder)
    events = EventStream(folder, "learner-0")
    return Keeper(folder, config, trainee_of(config), attempt=0, events=events, clock=clock or StepClock())


def choice(folder: RunFolder) -> tuple[str, str]:
    """The transport and the reason, after the first version."""
    keeper_of(folder).publish(0, 0)
    [event] = events_of(folder, "weights_transport")
    return event.payload["transport"], event.payload["reason"]


@pytest.mark.spec("A-188")
def test_weights_are_pushed_where_learner_and_servers_are_set_up_for_it(begun: Begun, server: Server):
    folder = begun()
    assert choice(folder) == ("nccl", f"{server.url} and this learner are set up for it")
    assert server.service.scheduler.label == f"0@{folder.version(0, 0).folder.partition('/')[2]}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Options(), """has none; start it with --weight-transfer-config '{"backend": "nccl"}'"""),
        (Options(weight_transfer="ipc"), "has the backend ipc; start it with --weight-transfer-config"),
        (Options(weight_transfer="nccl", enable_scale_out=False), "start it with --enable-scale-out"),
    ],
)
def test_a_server_that_cannot_take_them_reads_folders_and_is_refused_where_nccl_was_asked_for(
    begun: Begun, options: Options, reason: str
):
    transport, why = choice(begun(options))
    assert transport == "filesystem" and reason in why


def test_nccl_by_name_names_the_flag_that_the_server_lacks(begun: Begun):
    folder = begun(Options(), weights="nccl")
    with pytest.raises(
        EngineLost, match=r"""engine.weights = "nccl": .* --weight-transfer-config '{"backend": "nccl"}'"""
    ):
        keeper_of(folder).publish(0, 0)


def test_a_learner_without_a_gpu_says_so(begun: Begun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert choice(begun()) == ("filesystem", "the learner trains on the cpu, and NCCL connects CUDA devices")


def test_nccl_by_name_needs_vllm_beside_the_learner(begun: Begun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nccl, "NcclSender", WithoutVllm)
    with pytest.raises(MissingPackage, match=r"pip install 'agrpo\[vllm\]'; or set engine.weights = \"filesystem\""):
        keeper_of(begun(weights="nccl"))


def test_folders_by_name_are_folders(begun: Begun, server: Server):
    assert choice(begun(weights="filesystem")) == ("filesystem", 'engine.weights = "filesystem"')
    assert server.asked("/server_info", "GET") == []


def test_nothing_is_chosen_while_a_server_does_not_answer(begun: Begun, server: Server):
    folder = begun()
    keeper = keeper_of(folder)
    server.close_port()
    keeper.publish(0, 0)
    assert events_of(folder, "weights_transport") == []
    server.open_port()
    keeper.publish(1, 1)
    assert [event.payload["transport"] for event in events_of(folder, "weights_transport")] == ["nccl"]


def test_a_learner_leaves_its_version_to_a_generator_that_is_loading(
    begun: Begun, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pushing, "TURN_SECONDS", 0.05)
    folder = begun()
    Turns(folder).write(GeneratorTurn(incarnation="generator-0", loading=0))
    keeper_of(folder).publish(0, 0)
    [event] = events_of(folder, "push_failed")
    assert event.payload["reason"] == "the generator has loaded for 0.05 s"
    assert server.asked("/pause") == [] and Turns(folder).learner() == LearnerTurn(attempt=0)


def test_the_next_version_is_not_pushed_before_the_one_before_is_proved(
    begun: Begun, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pushing, "TURN_SECONDS", 0.05)
    folder = begun()
    keeper = keeper_of(folder)
    keeper.publish(0, 0)
    keeper.publish(1, 1)
    assert [event.payload["version"] for event in events_of(folder, "pushed")] == [0]
    assert Turns(folder).learner() == LearnerTurn(attempt=0, pushed=0)
    folder.write_acknowledgement(
        Acknowledgement(engine="generator-0", version=0, acknowledged_at=0.0, probe_difference=0.0)
    )
    keeper.publish(2, 2)
    assert [event.payload["version"] for event in events_of(folder, "pushed")] == [0, 2]


@pytest.mark.spec("A-353")
def test_what_servers_were_paused_for_is_told_apart_from_sending(begun: Begun):
    folder, clock = begun(), StepClock()
    keeper_of(folder, clock).publish(0, 0)
    spent = clock.lap()
    (pushed,) = events_of(folder, "pushed")
    paused = pushed.payload["pause_seconds"] + pushed.payload["resume_seconds"]
    assert spent.sync_pause_seconds == pytest.approx(paused)
    assert 0 < spent.sync_transfer_seconds < spent.sync_seconds - spent.sync_pause_seconds
    assert (spent.sync_barrier_seconds, spent.num_syncs) == (0.0, 1)


def turn_of(folder: RunFolder) -> TurnTaking:
    return TurnTaking(folder, config_of(folder), "generator-0")


def test_a_generator_waits_until_the_push_is_over_and_says_that_it_loads_meanwhile(begun: Begun):
    folder = begun()
    turns, seen = Turns(folder), list[int | None]()
    turns.write(LearnerTurn(attempt=0, pushing=3))

    async def load() -> None:
        async with turn_of(folder).taken(3):
            seen.append(turns.generator().loading)
            assert turns.learner().pushing is None

    def end() -> None:
        seen.append(turns.generator().loading if turns.generator() else None)
        turns.write(LearnerTurn(attempt=0, pushed=3))

    timer = threading.Timer(0.3, end)
    timer.start()
    asyncio.run(load())
    timer.join()
    assert seen == [None, 3] and turns.generator().loading is None


def test_the_word_of_a_learner_that_was_replaced_holds_nobody_up(begun: Begun):
    folder = begun()
    Turns(folder).write(LearnerTurn(attempt=0, pushing=3))
    folder.write_attempt(Attempt(attempt=1, host="here", pid=2, started_at=1.0))
    assert Turns(folder).learner() is None


def test_a_version_that_was_pushed_and_overtaken_is_proved_first(begun: Begun):
    folder = begun(weights="auto")
    keeper = keeper_of(folder)
    for version in range(3):
        keeper.publish(version, version)
        folder.write_acknowledgement(
            Acknowledgement(engine="generator-0", version=version, acknowledged_at=0.0, probe_difference=0.0)
        )
    found = [folder.version(0, version) for version in range(3)]
    Turns(folder).write(LearnerTurn(attempt=0, pushed=1))
    turn = turn_of(folder)
    assert turn.first(found[2], found[0], {0}) == found[1]
    assert turn.first(found[2], found[0], {0, 1}) == found[2]
    assert turn.first(found[2], None, set()) == found[2]
