"""The flow `train`: what Prefect is told of a run, and that nothing of a run outlives its flow, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.errors import ConfigError, StageFailed
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from tests.processes import alive, marked, until

ROOT = Path(__file__).parent.parent.parent

# Prefect leaves a socket to the garbage collector now and then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WORKING, FAILING, EXAMPLE = "tests.flows.working", "tests.flows.failing", "tests.stages.stage_examples"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of which only the examples know what to do."""
    tree = {"stop": {"grace_seconds": 1.0, "max_steps": 4}}
    document = {"name": tmp_path.name, "settings": {"tree": tree, "origins": {}}, "threads": 1}
    return RunFolder.create(str(tmp_path / "run"), document)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """Set in every process that the test starts."""
    yield from marked(tmp_path, monkeypatch)


def runs_named(name: str):
    """Flow runs of a name, oldest first."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

    with get_client(sync_client=True) as client:
        return client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))


def run_flow(folder: RunFolder, *stages: str, **env: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, str(ROOT / "tests/flows/run_flow.py"), folder.url, *stages]
    program = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    until(lambda: list(Path(folder.url).glob("ready *")) or program.poll() is not None, 120)
    return program


def ended(program: subprocess.Popen[str], seconds: float = 10) -> int:
    output, _ = program.communicate(timeout=seconds)
    print(output)
    return program.returncode


@pytest.mark.slow
def test_a_whole_run_goes_through_its_flow(api: str, run_file: Path, mark: bytes) -> None:
    from prefect.artifacts import Artifact

    from agrpo.database.queries import query

    folder = prepare(resolve(run_file))
    command = [sys.executable, "-m", "agrpo", "resume", folder.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert query(folder.database, "SELECT count(DISTINCT step) AS steps FROM live_metrics").to_pylist() == [
        {"steps": 4}
    ]
    assert [run.state.name for run in runs_named(folder.document()["name"])] == ["Completed"]
    artifact = Artifact.get(f"progress-{folder.document()['name']}".lower())
    assert artifact is not None
    assert (artifact.data, artifact.description[:6]) == (100.0, "step 4")
    assert alive(mark) == []


def test_one_stage_that_fails_ends_the_others_and_its_error_is_the_runs(
    api: str, folder: RunFolder, mark: bytes
) -> None:
    from flows.train import train

    with pytest.raises(StageFailed, match="failing ended with exit code 1: ModelError: the model has 3 heads"):
        train(run=folder.url, stages=[WORKING, FAILING])
    assert Path(folder.url, "in order").exists()
    [run] = runs_named(folder.document()["name"])
    assert run.state.name == "Failed"
    assert "failing ended with exit code 1: ModelError: the model has 3 heads and 2 are needed" in run.state.message
    assert alive(mark) == []


def test_a_recorder_alone_records_what_is_there(api: str, folder: RunFolder) -> None:
    from flows.train import train

    assert train(run=folder.url, stages=["recorder"]) == folder.url
    assert folder.database.exists()


def test_what_prefect_cannot_be_told_is_said_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from flows import watch

    monkeypatch.setattr(watch, "STATE_SECONDS", 0.01)
    with watch.Watch(folder, threading.Event()):
        until(lambda: caplog.records, 10)
        time.sleep(0.1)
    # Outside of a flow run there is none to read the state of.
    assert [record.message.partition(":")[0] for record in caplog.records] == ["cannot read the state of this flow run"]


def test_a_flow_run_without_a_run_is_told_what_it_needs(api: str) -> None:
    from flows.train import train

    with pytest.raises(ConfigError, match="run, config, quickstart: give one of config or quickstart to begin a run"):
        train()


def test_a_retry_goes_on_with_the_run_that_the_first_try_began(
    api: str, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.train import train

    monkeypatch.setenv("EXAMPLE", "die_twice")
    retrying = train.with_options(retries=2, retry_delay_seconds=0)
    url = retrying(config=str(run_file), stages=[EXAMPLE], settings=["supervision.restarts=0"])
    assert [str(path) for path in (run_file.parent / "runs").iterdir()] == [url]
    assert len(list(Path(url, "deaths").iterdir())) == 2


@pytest.mark.slow
def test_a_cancelled_flow_run_ends_its_stages_though_no_worker_signals_it(
    api: str, folder: RunFolder, mark: bytes
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    program = run_flow(folder, WORKING)
    [run] = runs_named(folder.document()["name"])
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Cancelling())
    assert ended(program) == 1
    assert alive(mark) == []
    assert Path(folder.url, "in order").exists()
    [run] = runs_named(folder.document()["name"])
    assert (run.state.name, run.state.message) == ("Cancelled", f"cancelled; resume it with run={folder.url}")


@pytest.mark.slow
def test_a_run_that_is_stopped_is_recorded_to_its_last_record(api: str, run_file: Path, mark: bytes) -> None:
    from agrpo.audit import verify

    folder = prepare(resolve(run_file, ["stop.max_steps=100000"]))
    command = [sys.executable, "-m", "agrpo", "resume", folder.url]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: len(folder.done_steps(0)) >= 5 or program.poll() is not None, 120)
    program.terminate()
    assert ended(program) == 143
    assert [str(finding) for finding in verify(folder).findings] == []
    assert alive(mark) == []


@pytest.mark.slow
@pytest.mark.spec("K18")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signalled_flow_takes_its_stages_along(api: str, folder: RunFolder, mark: bytes, number: int) -> None:
    program = run_flow(folder, WORKING, EXAMPLE, EXAMPLE="hold_the_interpreter")
    until(lambda: len(list(Path(folder.url).glob("ready *"))) == 2, 20)
    program.send_signal(number)
    assert ended(program) == -number
    until(lambda: not alive(mark), 10)
    [run] = runs_named(folder.document()["name"])
    assert run.state.name == ("Running" if number == signal.SIGKILL else "Crashed")


@pytest.mark.slow
@pytest.mark.spec("K18")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_flow_with_a_server_of_its_own_ends_as_soon(
    folder: RunFolder, mark: bytes, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    program = run_flow(folder, WORKING, EXAMPLE, EXAMPLE="ignore_sigterm")
    os.killpg(program.pid, number)
    assert ended(program) != 0
    until(lambda: not alive(mark), 10)
