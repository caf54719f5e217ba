"""The adapter of OpenEnv against servers of OpenEnv's own, on this machine.

It needs their client: `make test-openenv` installs it first.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import EnvironmentsSection, resolve
from agrpo.environments.adapters.openenv_server import session
from agrpo.environments.checking import found_environments
from agrpo.environments.factories import kind_at
from agrpo.environments.pool import Broken, Pool, Visit
from agrpo.records.arrow import group_from_arrow
from agrpo.runs import prepare as prepare_run
from agrpo.tools.caller import Caller
from tests.stages.walk import settings, walk

pytest.importorskip("openenv.core", reason='needs OpenEnv: pip install "agrpo[openenv]", or make test-openenv')
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
"""What their package warns of is not ours to mend."""

ROOT = Path(__file__).parents[2]


@dataclass
class Served:
    """A server of OpenEnv's in a process of its own."""

    name: str
    port: int
    sessions: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, seconds: float = 200.0) -> None:
        """Raises `RuntimeError` where it does not answer in time."""
        command = [sys.executable, "-m", "tests.openenv.served", self.name, str(self.port), str(self.sessions)]
        self.process = subprocess.Popen(command, cwd=ROOT)
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"the server {self.name} did not answer within {seconds} s")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def serve(stack: ExitStack, name: str, sessions: int = 4) -> Served:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        served = Served(name, free.getsockname()[1], sessions)
    stack.callback(served.kill)
    served.start()
    return served


@pytest.fixture(scope="module")
def safe() -> Iterator[Served]:
    with ExitStack() as stack:
        yield serve(stack, "safe")


@pytest.fixture(scope="module")
def tools() -> Iterator[Served]:
    with ExitStack() as stack:
        yield serve(stack, "tools")


def acted(
    url: str, act: Callable[[Pool, Callable[[Visit, str, dict[str, Any]], Awaitable[Any]]], Awaitable[Any]], **own: Any
) -> Any:
    """What `act` gives with a pool of the environment at the URL, and with a way to call one of its tools."""

    async def run() -> Any:
        caller, seconds = Caller(num_threads=4), own.pop("seconds", 30.0)
        kind = kind_at("openenv", settings={"url": url, **own})

        async def call(visit: Visit, name: str, arguments: dict[str, Any]) -> Any:
            tool = visit.tools[name]
            outcome = await caller.call(name, tool.function, arguments, is_async=tool.is_async, seconds=seconds)
            if outcome is None:
                visit.note_hanging()
                return None
            return outcome if outcome.error is None else str(outcome.error)

        pool = Pool(kind, caller, seconds=300.0)
        try:
            return await act(pool, call)
        finally:
            for instance in [*pool._free, *pool._lent.values()]:
                instance._drop()
            await asyncio.gather(*session._CLOSING)

    return asyncio.run(run())


def test_a_server_is_an_environment_whose_action_is_a_tool(safe: Served):
    kind = kind_at("openenv", settings={"url": safe.url})
    assert (kind.class_name, kind.reset_is_async, kind.reward_is_async) == ("Safe", True, True)
    assert kind.reset_names is None and kind.reset_needs == frozenset()
    (tool,) = kind.tools.values()
    assert (tool.name, tool.is_async, tool.required) == ("step", True, frozenset({"value"}))
    function = tool.schema["function"]
    assert function["description"] == "Turn the dial of the safe."
    assert function["parameters"]["properties"]["value"] == {"description": "Where to turn it.", "type": "integer"}
    assert "metadata" not in function["parameters"]["properties"]


def test_an_episode_is_reset_acted_in_and_paid(safe: Served):
    async def act(pool: Pool, call: Any) -> Any:
        visit = pool.visit({"number": 3, "more": ", really"})
        told = await visit.begin()
        answers = [await call(visit, "step", {"value": value}) for value in (1, -1, 3, 3)]
        await visit.end(judged=True)
        return told, answers, visit.stay()

    told, answers, stay = acted(safe.url, act)
    assert told == " It is one of 5 numbers, really."
    assert answers[0].value == "closed" and "the dial has no -1" in answers[1]
    assert answers[2].value == "open\nThe episode is over."
    assert answers[3] == "nothing more can be done: the episode is over"
    assert (stay.environment, stay.reward, stay.reward_error) == ("Safe", 1.25, None)


def test_a_rollout_that_does_nothing_is_paid_nothing_and_the_last_reward_may_be_all(safe: Served):
    async def act(pool: Pool, call: Any) -> Any:
        paid: list[Any] = []
        for values in ((), (1, 3)):
            visit = pool.visit({"seed": 3})
            await visit.begin()
            for value in values:
                await call(visit, "step", {"value": value})
            await visit.end(judged=True)
            paid.append(visit.stay().reward)
        return paid, pool.num_made

    assert acted(safe.url, act, reward="last", name="Last") == ([0.0, 1.0], 1)


def test_sessions_of_rollouts_that_run_at_once_are_apart(safe: Served):
    async def act(pool: Pool, call: Any) -> Any:
        visits = [pool.visit({"seed": seed}) for seed in (1, 2)]
        await asyncio.gather(*(visit.begin() for visit in visits))
        answers = [(await call(visit, "step", {"value": 1})).value for visit in visits]
        for visit in visits:
            await visit.end(judged=False)
        return answers

    assert acted(safe.url, act) == ["open\nThe episode is over.", "closed"]


def test_tools_of_a_server_are_tools_with_its_own_descriptions(tools: Served):
    kind = kind_at("openenv", settings={"url": tools.url, "name": "Adding"})
    assert sorted(kind.tools) == ["add", "fail"] and kind.class_name == "Adding"
    assert kind.tools["add"].schema["function"]["description"] == "Add two numbers."
    assert kind.tools["add"].required == frozenset({"a"})

    async def act(pool: Pool, call: Any) -> Any:
        visit = pool.visit({"number": 1})
        told = await visit.begin()
        answers = [await call(visit, "add", {"a": 2}), await call(visit, "fail", {"why": "broken"})]
        await visit.end(judged=True)
        return told, answers, visit.stay()

    told, (sum_of, failure), stay = acted(tools.url, act, name="Adding")
    assert told is None and sum_of.value == "3" and "broken" in failure
    assert stay.reward is None and "gave no reward in " in stay.reward_error


def test_a_step_that_hangs_costs_its_episode_and_the_next_one_begins(safe: Served):
    async def act(pool: Pool, call: Any) -> Any:
        visit = pool.visit({"seed": 3})
        await visit.begin()
        hung = await call(visit, "step", {"value": -2})
        after = await call(visit, "step", {"value": 3})
        await visit.end(judged=True)
        other = pool.visit({"seed": 3})
        told = await other.begin()
        await other.end(judged=False)
        return hung, after, visit.stay(), told

    hung, after, stay, told = acted(safe.url, act, seconds=0.5)
    assert hung is None and after == "nothing more can be done: the step before has not come back"
    assert stay.reward is None and "was lost: a step did not come back in time" in stay.reward_error
    assert told == " It is one of 5 numbers."


def test_a_connection_that_is_cut_loses_its_episode_though_the_server_is_there(safe: Served):
    async def act(pool: Pool, call: Any) -> Any:
        visit = pool.visit({"seed": 3})
        await visit.begin()
        (instance,) = pool._lent.values()
        instance._client._ws.transport.abort()
        await asyncio.sleep(0.5)
        lost = [await call(visit, "step", {"value": 3}) for _ in range(2)]
        await visit.end(judged=True)
        other = pool.visit({"seed": 3})
        await other.begin()
        answer = await call(other, "step", {"value": 3})
        await other.end(judged=True)
        return lost, visit.stay(), answer.value, other.stay().reward

    (lost, again), stay, answer, paid = acted(safe.url, act)
    assert lost == f"the session on {safe.url} was lost: the connection was closed" and lost in again
    assert stay.reward is None and stay.reward_error == f"Safe.get_reward raised RuntimeError: {lost}"
    assert (answer, paid) == ("open\nThe episode is over.", 1.0)


def test_a_server_that_dies_loses_its_episodes_and_is_used_again_when_it_is_back():
    with ExitStack() as stack:
        served = serve(stack, "safe")

        async def act(pool: Pool, call: Any) -> Any:
            visit = pool.visit({"seed": 3})
            await visit.begin()
            served.kill()
            lost = await call(visit, "step", {"value": 3})
            await visit.end(judged=True)
            starting = asyncio.create_task(asyncio.to_thread(served.start))
            other = pool.visit({"seed": 3})
            await other.begin()
            await starting
            answer = await call(other, "step", {"value": 3})
            await other.end(judged=True)
            return lost, visit.stay(), answer.value, other.stay().reward, pool.num_made

        lost, stay, answer, paid, made = acted(served.url, act, connect_seconds=250.0)
    assert "was lost: ConnectionClosed" in lost
    assert stay.reward is None and stay.reward_error == f"Safe.get_reward raised RuntimeError: {lost}"
    assert (answer, paid, made) == ("open\nThe episode is over.", 1.0, 1)


def test_a_server_that_stays_away_or_is_full_fails_the_reset_by_name():
    with ExitStack() as stack:
        served = serve(stack, "safe", sessions=1)

        async def act(pool: Pool, call: Any) -> Any:
            first, second = pool.visit({"seed": 3}), pool.visit({"seed": 3})
            await first.begin()
            told: list[str] = []
            with pytest.raises(Broken) as full:
                await second.begin()
            told.append(str(full.value))
            served.kill()
            with pytest.raises(Broken) as gone:
                await pool.visit({"seed": 3}).begin()
            return [*told, str(gone.value)]

        full, gone = acted(served.url, act, connect_seconds=1.0)
    assert "gave no session within 1 s (connect_seconds)" in full
    assert "async.max_concurrent_rollouts × workers.generators of them: raise the server's max_conc" in full
    assert "gave no session within 1 s (connect_seconds)" in gone and gone.endswith("See that the server runs")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, '"openenv": settings.url: missing'),
        ({"url": "here"}, "settings.url = 'here': string should match pattern"),
        ({"url": "http://127.0.0.1:9", "shows": "x"}, 'settings.shows: unknown setting; did you mean "show"?'),
        ({"url": "http://127.0.0.1:9", "connect_seconds": 0.5}, "http://127.0.0.1:9 cannot be asked (ConnectError: "),
        (
            {"url": "http://127.0.0.1:9", "token_variable": "NO_SUCH_TOKEN"},
            "variable NO_SUCH_TOKEN (token_variable) is not",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_starts(settings: dict[str, Any], told: str):
    kinds, (problem,) = found_environments(EnvironmentsSection(factory="openenv", settings=settings))
    assert kinds == {} and problem.startswith("environments.factory: ") and told in problem


def test_one_field_of_an_observation_may_be_shown(safe: Served):
    async def act(pool: Pool, call: Any) -> Any:
        with pytest.raises(Broken) as broken:
            await pool.visit({"seed": 3}).begin()
        return str(broken.value)

    assert 'the observation has no "board" (settings.show); it has ' in acted(safe.url, act, show="board")


def test_a_run_acts_on_a_server_and_records_what_it_was_asked_and_paid(safe: Served, tiny_model: Path, tmp_path: Path):
    tree = settings(tiny_model, tiny_model, tmp_path, stop={"max_steps": 1}, step={"zero_variance": "keep"})
    tree |= {
        "environments": {"factory": "openenv", "settings": {"url": safe.url}},
        "prompts": {"name": "environment", "size": 8},
        "rewards": [],
        "async": {"max_staleness": 0, "max_concurrent_rollouts": 4},
    }
    folder = prepare_run(resolve(values=tree))
    walk(folder)
    group = group_from_arrow(folder.groups.demand(0))
    assert [rollout.stay and rollout.stay.environment for rollout in group.rollouts] == ["Safe"] * 4
    assert group.prompts[0] == [{"role": "user", "content": " It is one of 5 numbers."}]
    assert {rollout.stay and rollout.stay.reward for rollout in group.rollouts} == {0.0}
    gc.collect()  # sessions of a generator that ran in this process: the end of its own would have closed them
