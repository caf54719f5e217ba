"""The stage `server`: what it says of a vLLM that comes up, dies or falls silent, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import ConfigError, DeadlineExceeded, EngineError, MissingPackage
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint
from agrpo.stages import StageContext, reaper, server
from tests.processes import alive, marked, until
from tests.stages.standing_in import DEAF, FAILING, HANGING, HOLLOW, SERVING, environment
from tests.stages.walk import settings

Begin = Callable[..., RunFolder]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """Set in every process that the test starts. What a killed server leaves is not waited for."""
    monkeypatch.setattr(reaper, "LEAVE_SECONDS", 0.1)
    yield from marked(tmp_path, monkeypatch)


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """A run whose servers are started from an environment with this program in the place of vLLM's interpreter."""

    def begun(program: str | None, **engine: Any) -> RunFolder:
        tree = settings(tmp_path / "model", tmp_path / "prompts.jsonl", tmp_path)
        tree["stop"]["grace_seconds"] = 1.0
        has = environment(tmp_path / "env", program) if program is not None else tmp_path / "nowhere"
        tree["engine"] = {"name": "vllm", "serve": True, "environment": str(has), **engine}
        built = RunConfig.build(resolve(values=tree)).settings
        return RunFolder.create(str(tmp_path / "run"), {"name": "run", "settings": {"tree": built.tree, "origins": {}}})

    return begun


class Kept:
    """The stage in a thread."""

    def __init__(self, folder: RunFolder, name: str = "server") -> None:
        self.error: BaseException | None = None
        self.stop = threading.Event()
        context = StageContext(run_url=folder.url, stage=name, incarnation=f"{name}-a", stop=self.stop)
        self.thread = threading.Thread(target=self._run, args=(context,))
        self.thread.start()

    def _run(self, context: StageContext) -> None:
        try:
            server.run(context)
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        """What it raised, once it has ended."""
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.error


def test_a_healthy_server_is_told_and_ended_with_all_that_it_started(begin: Begin, mark: bytes, capfd: Any) -> None:
    folder = begin(SERVING)
    kept = Kept(folder, "server-2")
    until(folder.server_urls, 20)
    before = alive(mark)
    assert len(before) == 2
    kept.stop.set()
    assert kept.ended() is None
    until(lambda: not alive(mark), 5)
    assert folder.server_urls() == []
    assert [(beat["stage"], beat["waiting_for"]) for beat in folder.beats()] == [("server-2", "vLLM to start")]
    assert capfd.readouterr().out.splitlines() == ["loading the weights", "100%"]


def test_a_server_that_dies_while_it_starts_ends_its_stage_with_its_last_lines(begin: Begin, mark: bytes) -> None:
    kept = Kept(begin(FAILING))
    assert isinstance(kept.ended(), EngineError)
    assert str(kept.error) == (
        "vLLM ended by itself, exit code 1; its last lines: RuntimeError: no memory for the KV cache"
    )


def test_a_server_that_does_not_come_up_is_told_by_the_name_of_the_limit(begin: Begin, mark: bytes) -> None:
    kept = Kept(begin(HANGING, start_seconds=0.5))
    assert isinstance(kept.ended(), DeadlineExceeded)
    assert "for vLLM to start; the limit is 0.5 s (engine.start_seconds); its last lines: loading the" in str(
        kept.error
    )
    until(lambda: not alive(mark), 5)


def test_a_killed_server_ends_its_stage_and_leaves_nothing_that_it_started(begin: Begin, mark: bytes) -> None:
    folder = begin(SERVING)
    kept = Kept(folder)
    until(folder.server_urls, 20)
    until(lambda: len(alive(mark)) == 2, 5)
    os.kill(min(alive(mark)), signal.SIGKILL)
    assert str(kept.ended()).startswith("vLLM ended by itself, killed by signal 9; its last lines: loading the weights")
    until(lambda: not alive(mark), 5)


def test_a_server_that_the_generator_gave_up_ends_its_stage_to_be_started_again(
    begin: Begin, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BEAT_SECONDS", 0.1)
    folder = begin(SERVING)
    kept = Kept(folder)
    until(folder.server_urls, 20)
    folder.give_up_server("http://127.0.0.1:1")
    assert len(folder.server_urls()) == 1
    folder.give_up_server(*folder.server_urls())
    assert isinstance(kept.ended(), EngineError)
    assert str(kept.error).endswith("could not be given its weights back after a load that failed; it is started again")
    until(lambda: not alive(mark), 5)


def test_a_server_that_is_deaf_to_the_stop_is_killed_within_the_grace(begin: Begin, mark: bytes) -> None:
    folder = begin(DEAF)
    kept = Kept(folder)
    until(folder.server_urls, 20)
    kept.stop.set()
    assert kept.ended() is None
    until(lambda: not alive(mark), 5)


def test_a_server_that_falls_silent_ends_its_stage(begin: Begin, mark: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEALTH_SECONDS", 0.2)
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.6)
    folder = begin(SERVING)
    kept = Kept(folder)
    until(folder.server_urls, 20)
    os.kill(min(alive(mark)), signal.SIGSTOP)
    assert isinstance(kept.ended(), EngineError)
    assert "left /health unanswered for 1 s, more than 0.6 s" in str(kept.error)
    until(lambda: not alive(mark), 5)


@pytest.mark.parametrize(
    ("number", "told"), [(signal.SIGUSR1, "answered /health with 503 for"), (signal.SIGUSR2, "took no connection for")]
)
def test_a_server_whose_engine_has_died_and_that_stays_ends_its_stage_soon(
    begin: Begin, mark: bytes, monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    monkeypatch.setattr(server, "HEALTH_SECONDS", 0.2)
    monkeypatch.setattr(server, "REFUSED_SECONDS", 0.6)
    folder = begin(HOLLOW)
    kept = Kept(folder)
    until(folder.server_urls, 20)
    until(lambda: len(alive(mark)) == 2, 5)
    os.kill(min(alive(mark)), number)
    assert isinstance(kept.ended(), EngineError)
    assert told in str(kept.error) and "more than 0.6 s; its last lines" in str(kept.error)
    until(lambda: not alive(mark), 5)


def test_a_server_whom_nobody_asks_to_end_does_so_after_the_run(
    begin: Begin, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ALONE_SECONDS", 0.2)
    monkeypatch.setattr(server, "BEAT_SECONDS", 0.1)
    folder = begin(SERVING)
    kept = Kept(folder)
    until(folder.server_urls, 20)
    folder.write_hint(Hint(limit_ticket=0, dropped=0, floor=0))
    folder.write_hint(Hint(limit_ticket=0, dropped=0, floor=0, finished=True))
    assert kept.ended() is None
    assert not kept.stop.is_set()


def test_a_run_without_servers_of_its_own_has_no_such_stage(begin: Begin) -> None:
    kept = Kept(begin(None, serve=False, environment=None))
    assert isinstance(kept.ended(), ConfigError)
    assert str(kept.error).startswith("engine.serve: this run has no servers of its own")


def test_a_machine_without_vllm_is_told_what_to_run(begin: Begin) -> None:
    kept = Kept(begin(None))
    assert isinstance(kept.ended(), MissingPackage)
    assert "`make vllm` installs it" in str(kept.error)
