"""The README's code blocks, executed in the order in which a newcomer meets them.

`make quickstart` runs whole, on this clone's environment. `make test` is what runs this test, so of it only the command
is looked at. Every other block runs as it stands in one folder, against the quickstart's run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUICKSTART_SECONDS = 900
COMMAND_SECONDS = 400

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Newcomer:
    """Somebody with a terminal in an empty folder."""

    folder: Path
    blocks: list[tuple[str, str]]

    def block(self, language: str, word: str) -> str:
        """The README's only block of that language with that word in it."""
        (found,) = [text for kind, text in self.blocks if kind == language and word in text]
        return found

    def types(self, command: str, seconds: float = COMMAND_SECONDS) -> str:
        """What a command of the shell prints. It must succeed."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (
            f"{command}\nended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
        return done.stdout

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ours = ("PREFECT", "PYTEST", "OMP_", "MAKE", "ARGS")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**inherited, "PATH": path, "PREFECT_HOME": str(self.folder / ".prefect")}


def lines(block: str) -> list[str]:
    """The commands of a block, without their comments."""
    return [line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    return Newcomer(folder=tmp_path_factory.mktemp("newcomer"), blocks=BLOCK.findall((ROOT / "README.md").read_text()))


@pytest.fixture(scope="module")
def shown(newcomer: Newcomer) -> str:
    """What `make quickstart` prints, run on the environment of this test."""
    quickstart, test = lines(newcomer.block("sh", "make quickstart"))
    assert test == "make test"
    bin_folder = Path(sys.executable).parent
    return newcomer.types(
        f'{quickstart} -C "{ROOT}" -o install BIN="{bin_folder}" RUNS="{newcomer.folder}/runs" '
        f'PREFECT="PREFECT_HOME={newcomer.folder}/.prefect"',
        QUICKSTART_SECONDS,
    )


def test_quickstart_learns_and_says_where_everything_is(shown: str, newcomer: Newcomer):
    before, after = (float(value) for value in re.findall(r"held-out reward +(\S+) -> (\S+)", shown)[0])
    assert after >= 0.8
    assert after - before >= 0.4
    for label in ("run", "plot", "database", "model", "run file"):
        (place,) = re.findall(rf"^{label} +(/\S+)$", shown, re.MULTILINE)
        assert Path(place).exists()
    assert shown.count("agrpo sql latest") == 3


@pytest.mark.spec("A-003", "K40")
def test_every_rollout_is_recorded_once(shown: str, newcomer: Newcomer):
    counts = newcomer.types(
        'agrpo sql latest --format csv "SELECT (SELECT count(*) FROM rollouts), (SELECT count(DISTINCT (ticket, '
        'rollout_index)) FROM rollouts), (SELECT 8 * count(*) FROM groups)"'
    ).splitlines()[1]
    assert len(set(counts.split(","))) == 1


@pytest.mark.spec("A-282", "A-291", "K23")
def test_logged_numbers_are_those_of_the_rows(shown: str, newcomer: Newcomer):
    differences = newcomer.types(
        'agrpo sql latest --format csv "SELECT max(abs(m.value - s.value)), count(*) FROM live_metrics m '
        'JOIN step_metrics s USING (attempt, step, name)"'
    ).splitlines()[1]
    largest, compared = differences.split(",")
    assert float(largest) < 5e-6  # times are stored in whole microseconds
    assert int(compared) > 60 * 10


def test_make_test_runs_the_tests(newcomer: Newcomer):
    assert "pytest" in newcomer.types(f'make -C "{ROOT}" -n -o install test')


def test_a_run_of_ones_own_is_checked_trained_asked_and_resumed(shown: str, newcomer: Newcomer):
    (newcomer.folder / "run.toml").write_text(newcomer.block("toml", "[model]"))
    printed = {command: newcomer.types(command) for command in lines(newcomer.block("sh", "agrpo check"))}
    told = dict(zip(("check", "train", "runs", "sql", "resume"), printed.values(), strict=True))
    assert "nothing is wrong" in told["check"]
    assert "step 10/10" in told["train"]
    assert "finished" in told["runs"]
    assert "trained" in told["sql"]
    assert "continuing from the checkpoint of step 10" in told["resume"]


def test_nothing_of_a_run_is_lost(shown: str, newcomer: Newcomer):
    printed = {command: newcomer.types(command) for command in lines(newcomer.block("sh", "agrpo verify"))}
    told = dict(zip(("verify", "replay", "rebuild", "resume", "whatif"), printed.values(), strict=True))
    assert "balances" in told["verify"]
    assert "bit-identical" in told["replay"]
    assert "identical" in told["rebuild"]
    assert "going back to step 8" in told["resume"]
    assert "step 10/10" in told["resume"]
    assert "groups" in told["whatif"]
    assert "balances" in newcomer.types("agrpo verify latest")


def test_a_run_is_looked_at(shown: str, newcomer: Newcomer):
    printed = {command: newcomer.types(command) for command in lines(newcomer.block("sh", "agrpo watch"))}
    told = dict(zip(("watch", "diagnose", "show", "report", "questions", "export"), printed.values(), strict=True))
    assert "finished after step" in told["watch"]
    assert "steps" in told["diagnose"]
    assert "advantage" in told["show"]
    assert Path(re.findall(r"(/\S+report\.html)", told["report"])[0]).stat().st_size < 5_000_000
    assert "prompt" in told["questions"]
    assert {file.suffix for file in (newcomer.folder / "exported").iterdir()} == {".parquet", ".md"}


def test_python_reads_the_run(shown: str, newcomer: Newcomer):
    script = newcomer.folder / "example.py"
    script.write_text(newcomer.block("python", "agrpo.connect"))
    newcomer.types(f"python {script.name}")


@pytest.fixture
def server(newcomer: Newcomer) -> Iterator[str]:
    """A Prefect server of the newcomer's own."""
    port = newcomer.types(
        "python -c \"import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])\""
    ).strip()
    url = f"http://127.0.0.1:{port}/api"
    process = _background(newcomer, f"prefect server start --host 127.0.0.1 --port {port} --no-ui")
    try:
        _wait_for(
            lambda: newcomer_succeeds(
                newcomer, f"python -c 'import httpx; httpx.get(\"{url}/health\").raise_for_status()'"
            ),
            "the server",
            120,
        )
        yield url
    finally:
        _end(process)


def newcomer_succeeds(newcomer: Newcomer, command: str) -> bool:
    return (
        subprocess.run(["bash", "-c", command], env=newcomer.environment(), capture_output=True, check=False).returncode
        == 0
    )


def test_a_run_is_a_deployment(shown: str, server: str, newcomer: Newcomer):
    create, deploy, worker, run = lines(newcomer.block("sh", "prefect deployment run"))
    for name in ("deployments", "flows"):
        if not (newcomer.folder / name).exists():
            (newcomer.folder / name).symlink_to(ROOT / name)
    newcomer.types(f"export PREFECT_API_URL={server}; {create} && {deploy}")
    working = _background(newcomer, f"export PREFECT_API_URL={server}; exec {worker}")
    try:
        newcomer.types(f"export PREFECT_API_URL={server}; {run}", QUICKSTART_SECONDS)
    finally:
        _end(working)
    steps = newcomer.types('agrpo sql latest --format csv "SELECT count(DISTINCT step) FROM live_metrics"')
    assert steps.splitlines()[1] == "20"


def _background(newcomer: Newcomer, command: str) -> subprocess.Popen[bytes]:
    with open(newcomer.folder / "background.log", "ab") as log:
        return subprocess.Popen(
            ["bash", "-c", command],
            cwd=newcomer.folder,
            env=newcomer.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def _wait_for(reached, what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.5)
