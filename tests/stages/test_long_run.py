"""Long runs and small disks: what is kept is bounded, and nothing grows but the rows of the database."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from agrpo.checkpoints.manifest import verified
from agrpo.config import RunConfig, load_settings, resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.errors import StoreFull
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.progress import Attempt, Base, CheckpointState
from agrpo.runs import prepare
from agrpo.stages import STAGES
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import Trainee
from agrpo.stages.keeping import Keeper
from agrpo.stages.process import StageProcess, Supervisor
from agrpo.stages.recorder import record_once
from tests.queue.archived_run import archived, each, lying
from tests.stages.walk import LOCKSTEP, Walk, dones, settings, walk

NUM_STEPS = 500
MOST_GROWN_MB = 20
WARM_AT = {"generator": 100, "scorer": 100, "learner": 100, "recorder": 350}
"""Steps. The recorder is warm after as many passes as others after steps, and makes two a second."""


def begin(model: Path, place: Path, **tables: object) -> RunFolder:
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    return prepare(resolve(values=settings(model, prompts, place, **tables)))


class Watcher:
    """Looks at a run every few milliseconds: the most folders and slots at once, the newest checkpoint at each look, and
    memory by stage at step 100 and last."""

    def __init__(self, folder: RunFolder, stages: list[StageProcess]) -> None:
        self.most = {"weights": 0, "checkpoints": 0, "groups/000000": 0}
        self.newest: list[str] = []
        self.warm: dict[str, float] = {}
        """Megabytes of each stage when it had met all that it meets."""
        self.last: dict[str, float] = {}
        self._folder, self._stages, self._over = folder, stages, Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            for name, most in self.most.items():
                self.most[name] = max(most, len(self._folder.filesystem.list(name)))
            self.newest += self._folder.filesystem.list("checkpoints")[-1:]
            for stage in self._stages:
                resident = resident_mb(stage.pid)
                if resident is not None:
                    self.last[stage.name] = resident
            done = max(self._folder.done_steps(0), default=0)
            for name, step in WARM_AT.items():
                if name not in self.warm and done >= step and name in self.last:
                    self.warm[name] = self.last[name]


def resident_mb(pid: int) -> float | None:
    """None: the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")]
    return found[0] if found else None


@pytest.mark.spec("K38")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory of a process is read from /proc")
def test_five_hundred_steps_keep_few_weights_few_checkpoints_and_their_memory(tiny_model: Path, tmp_path: Path):
    folder = begin(
        tiny_model,
        tmp_path,
        engine={"num_generations": 2, "max_completion_length": 4},
        step={"groups": 1},
        asynchronous={"max_staleness": 2},
        checkpoint={"every_seconds": 0.2},
        recorder={"every_seconds": 0.5},
        stop={"max_steps": NUM_STEPS, "stall_seconds": 120},
    )
    finish = Event()
    with Supervisor(folder.url, folder.local / "logs") as supervisor:
        started = {name: supervisor.start(name) for name in STAGES}
        watcher = Watcher(folder, list(started.values()))
        try:
            for name in ("learner", "generator", "scorer"):
                supervisor.wait(started[name])
            finish.set()
            supervisor.wait(started["recorder"], finish=finish)
        finally:
            watcher.end()
    assert watcher.most["checkpoints"] <= 2 + 1, "one more while it is written"
    assert watcher.most["weights"] <= 4
    assert len(folder.filesystem.list("checkpoints")) == 2
    assert watcher.newest == sorted(watcher.newest), "the newest checkpoint is never removed"
    assert_archived(folder, watcher.most["groups/000000"])
    verified(folder.filesystem.local_folder(f"checkpoints/{NUM_STEPS:08d}-000000"))
    grown = {name: watcher.last[name] - before for name, before in watcher.warm.items()}
    assert sorted(grown) == sorted(STAGES)
    assert {name: megabytes for name, megabytes in grown.items() if megabytes > MOST_GROWN_MB} == {}
    assert_rows_and_nothing_else(folder)


def assert_archived(folder: RunFolder, most_groups: int) -> None:
    """The queue is empty, was never full, and all that was in it is in the archive."""
    assert lying(folder) == each([])
    assert most_groups < NUM_STEPS
    assert archived(folder)["groups"][0] == "000000000000-000000000255"
    assert folder.groups.numbers() == folder.scored.numbers()
    assert set(folder.groups.numbers()) <= set(folder.claims.tickets(0)) == set(range(folder.claims.next_free()))


def assert_rows_and_nothing_else(folder: RunFolder) -> None:
    """The database has every step once, and is not much larger than one that is built of the same rows at once."""
    counted = "SELECT count(*) AS steps, count(DISTINCT step) AS different FROM steps"
    assert query(folder, counted).to_pylist() == [{"steps": NUM_STEPS, "different": NUM_STEPS}]
    fresh = folder.database.with_name("fresh.duckdb")
    record_once(folder, Database(fresh))
    assert folder.database.stat().st_size < 2 * fresh.stat().st_size


@pytest.fixture(params=[6])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The mount point of a disk of so many mebibytes. Needs root and the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root only")
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}m", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no right to mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def a_keeper(folder: RunFolder) -> Keeper:
    config = RunConfig.build(load_settings(folder.document()))
    model = load_policy(config.model)
    trainee = Trainee(model=model, optimizer=build_optimizer(model, config.optimizer))
    return Keeper(folder, config, trainee, attempt=0, events=EventStream(folder, "learner-a"), clock=StepClock())


def a_state(step: int) -> CheckpointState:
    return CheckpointState(
        attempt=0,
        step=step,
        digest="d",
        floor=0,
        consumed=[],
        num_replaced=0,
        num_tokens=0,
        num_prompts=0,
        version=step,
        written_at=1.0,
    )


@pytest.mark.spec("K38")
def test_a_disk_full_while_saving_is_said_and_leaves_what_was_saved_before(
    tiny_model: Path, tmp_path: Path, disk: Path
):
    folder = RunFolder.create(str(disk), begin(tiny_model, tmp_path).document())
    folder.write_attempt(Attempt(attempt=0, host="here", pid=1, started_at=0.0))
    folder.write_base(Base(attempt=0))
    keeper = a_keeper(folder)
    keeper.write_checkpoint(a_state(1))
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(b"x" * 4096)
    os.truncate(filler, filler.stat().st_size - 100_000)
    for act in (lambda: keeper.write_checkpoint(a_state(2)), lambda: keeper.publish(2, 2, ordinal=2)):
        with pytest.raises(StoreFull, match=r"no space left.*make room.*agrpo resume"):
            act()
    assert folder.filesystem.list("checkpoints") == ["00000001-000000"]
    assert folder.filesystem.list("weights") == []
    assert list((Path(folder.url) / ".tmp").iterdir()) == []
    verified(folder.filesystem.local_folder("checkpoints/00000001-000000"))
    filler.unlink()
    keeper.write_checkpoint(a_state(2))
    assert folder.filesystem.list("checkpoints") == ["00000001-000000", "00000002-000000"]


@pytest.mark.slow
@pytest.mark.parametrize("disk", [48], indirect=True)
def test_a_run_stops_before_its_disk_is_full_and_goes_on_once_there_is_room(
    tiny_model: Path, tmp_path: Path, disk: Path
):
    # Long enough that it cannot end between two looks at the room.
    steps = {"max_steps": 60, "stall_seconds": 60}
    tables = {**LOCKSTEP, "store": {"min_free_bytes": 8 * 2**20}, "stop": steps}
    twin = begin(tiny_model, tmp_path, **tables)
    folder = RunFolder.create(str(disk / "run"), twin.document())
    walking = Walk(folder).start("generator", "scorer", "learner")
    walking.until(lambda: len(folder.done_steps(0)) > 0)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 6 * 2**20)
    with pytest.raises(StoreFull, match=r"MB are free on the disk of .* .*store\.min_free_bytes.*agrpo resume"):
        walking.join()
    claimed = folder.claims.next_free()
    with pytest.raises(StoreFull):
        walk(folder)
    assert folder.claims.next_free() == claimed, "nothing is claimed where there is no room"
    filler.unlink()
    walk(folder)
    walk(twin)
    histories = [[done for attempt in run.attempts() for done in dones(run, attempt)] for run in (folder, twin)]
    digests = [{done.step: done.digest for done in history} for history in histories]
    assert digests[0] == digests[1]
