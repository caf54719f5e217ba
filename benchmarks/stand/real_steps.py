"""Steps of a real model: a run's stages without Prefect, timed while all of them are at work.

The first steps are left out: groups lie ready for them that were made before the learner could train. The run is ended
while more steps are to come, so that no stage has begun to rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from agrpo.stages.process import StageProcess, Supervisor
from stand.processes import children, read
from stand.runs import newest_step, stages, until_ended

WARM_STEPS = 3
SPARE_STEPS = 3
"""Asked for beyond those that are measured."""
DEADLINE_SECONDS = 1500.0
PARTS = ("wait", "forward", "backward", "optimizer", "sync")

AtWork = Callable[[RunFolder, Supervisor, dict[str, StageProcess]], None]


@dataclass(frozen=True, kw_only=True)
class RealSteps:
    """What the measured steps took, all together."""

    steps: int
    trained: float
    """Tokens."""
    seconds: float
    cpu_seconds: float
    """Of every process of the run."""
    parts: Mapping[str, float]
    """Seconds of the learner, by what they were spent on."""
    busy: Mapping[str, float]
    """Seconds by stage, in which it had something to do."""
    publish: Sequence[float]
    """Seconds that each publish took of the learner."""
    serve: Sequence[float]
    """Seconds from the publish of each version to its first use by the engine."""
    copy: Sequence[float]
    """Seconds that it takes to copy the bytes of the weights beside them, and to bring them to the disk."""


def measure(
    settings: dict[str, Any], place: Path, steps: int, *, look: Callable[[int], None], at_work: AtWork | None = None
) -> RealSteps:
    """Train, time, and read the run's own database. `at_work`: called before the stages are ended."""
    tree = {**settings, "stop": {"max_steps": WARM_STEPS + steps + SPARE_STEPS}}
    folder = prepare(resolve(values=tree), folder=str(place))
    engine = settings["engine"]
    served = ["server"] if engine.get("serve") else []
    with stages(folder, [*served, "generator", "scorer", "learner", "recorder"]) as (supervisor, started):
        _until(folder, started, WARM_STEPS, look)
        before = _cpu_seconds(started)
        _until(folder, started, WARM_STEPS + steps, look)
        spent = _cpu_seconds(started) - before
        if at_work is not None:
            for name in ("learner", "generator", "scorer", "recorder"):
                supervisor.stop(started[name])
            at_work(folder, supervisor, started)
    with stages(folder, ["recorder"]) as (supervisor, started):
        until_ended(supervisor, started["recorder"], lambda: None, finish=True)
    return _measured(folder, steps, spent)


def _until(folder: RunFolder, started: Mapping[str, StageProcess], step: int, look: Callable[[int], None]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (done := newest_step(folder)) < step:
        look(done)
        dead = [f"{name}: its log is {stage.log_path}" for name, stage in started.items() if stage.ended]
        if dead or time.monotonic() > deadline:
            raise SystemExit(f"step {step} was not reached, only {done}; {dead or 'time is up'}")
        time.sleep(0.1)


def _cpu_seconds(started: Mapping[str, StageProcess]) -> float:
    pids = [pid for stage in started.values() for pid in (stage.pid, *children(stage.pid))]
    return sum(reading.cpu_seconds for reading in map(read, pids) if reading is not None)


def _measured(folder: RunFolder, steps: int, cpu_seconds: float) -> RealSteps:
    last = WARM_STEPS + steps
    sums = ", ".join(f"sum({part}_seconds) AS {part}" for part in PARTS)
    (found,) = query(
        folder.database,
        f"SELECT {sums}, sum(step_seconds - wait_seconds) AS busy, max(epoch(finished_at)) AS ended "
        f"FROM live_steps WHERE step > {WARM_STEPS} AND step <= {last}",
    ).to_pylist()
    (began,) = query(
        folder.database, f"SELECT epoch(finished_at) AS at FROM live_steps WHERE step = {WARM_STEPS}"
    ).to_pylist()
    window = (began["at"], found["ended"])
    return RealSteps(
        steps=steps,
        trained=_trained(folder, last),
        seconds=window[1] - window[0],
        cpu_seconds=cpu_seconds,
        parts={part: found[part] for part in PARTS},
        busy={"learner": found["busy"], **_busy(folder, window)},
        publish=[row["s"] for row in query(folder.database, _PUBLISHES).to_pylist()],
        serve=_served(folder),
        copy=[_copied(folder) for _ in range(3)],
    )


_PUBLISHES = f"SELECT sync_seconds / num_syncs AS s FROM live_steps WHERE step > {WARM_STEPS} AND num_syncs > 0"


def _trained(folder: RunFolder, last: int) -> float:
    (found,) = query(
        folder.database,
        "SELECT sum(value) AS tokens FROM live_metrics WHERE name = 'batch/trained_tokens_per_step' "
        f"AND step > {WARM_STEPS} AND step <= {last}",
    ).to_pylist()
    return found["tokens"]


def _busy(folder: RunFolder, window: tuple[float, float]) -> dict[str, float]:
    """Of generators, while any group was under way; of scorers, while they judged."""
    groups = query(folder.database, "SELECT epoch(claimed_at) AS a, epoch(finished_at) AS b FROM groups").to_pylist()
    scores = query(
        folder.database, "SELECT epoch(scored_at) - score_seconds AS a, epoch(scored_at) AS b FROM scored_groups"
    ).to_pylist()
    return {
        "generator": covered(((row["a"], row["b"]) for row in groups), window),
        "scorer": covered(((row["a"], row["b"]) for row in scores), window),
    }


def covered(spans: Iterable[tuple[float, float]], window: tuple[float, float]) -> float:
    """Seconds of the window in which at least one span lasts."""
    total, reached = 0.0, window[0]
    for began, ended in sorted(spans):
        end = min(ended, window[1])
        if end > reached:
            total += end - max(began, reached)
            reached = end
    return total


def _served(folder: RunFolder) -> list[float]:
    published = {
        version: ready.published_at
        for version in folder.versions(0)
        if (ready := folder.version(0, version)) is not None
    }
    events = [
        event
        for stream in folder.event_streams()
        if stream.startswith("generator")
        for number in folder.event_numbers(stream)
        if (event := folder.event(stream, number)) is not None and event.kind == "version_served"
    ]
    return [
        event.at - published[event.payload["version"]] for event in events if event.payload["version"] in published
    ][1:]


def _copied(folder: RunFolder) -> float:
    """Seconds to write what a publish writes, from memory to the disk."""
    newest = folder.version(0, max(folder.versions(0)))
    assert newest is not None
    data = [file.read_bytes() for file in (folder.local / newest.folder).glob("*.safetensors")]
    place = folder.local / "copy"
    began = time.perf_counter()
    with place.open("wb") as file:
        for bytes_of_one in data:
            file.write(bytes_of_one)
        file.flush()
        os.fsync(file.fileno())
    took = time.perf_counter() - began
    place.unlink()
    return took
