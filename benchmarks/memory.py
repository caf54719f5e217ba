"""Whether a long run stays as small as it was: memory of every stage, files and bytes on disk, step by step.

    python benchmarks/memory.py                     300 steps of a tiny model, in a folder of its own
    python benchmarks/memory.py --steps 600 --keep runs/memory
    python benchmarks/memory.py --database runs/x   only what a finished run left on disk

The stages run as they always do, each a process of its own. The slope is a straight line through every reading after
step 100 (least squares), in MB a step; below 0.05 is flat. Private memory is the process's own (heap and stacks);
resident memory counts the mapped slots too, which the kernel takes back when it likes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from stand.processes import Reading, children, read
from stand.runs import begin, load_average, newest_step, stages, until_ended
from stand.tables import bar, print_table

from agrpo.database.queries import query
from agrpo.queue.run_folder import RunFolder
from agrpo.stages import STAGES
from agrpo.stages.process import StageProcess

FLAT_MB_PER_STEP = 0.05
CHANGES = {
    "engine": {"num_generations": 4, "max_completion_length": 12},
    "step": {"groups": 4, "zero_variance": "refill"},
    "checkpoint": {"every_seconds": 1.0},
    "recorder": {"every_seconds": 1.0},
    "stop": {"stall_seconds": 300.0},
}
"""Small groups, many steps: what grows, grows by steps, versions, checkpoints and commits."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One look at a stage."""

    step: int
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class Most:
    """The most of something that lay on disk at one moment."""

    weights: int = 0
    checkpoints: int = 0
    groups: int = 0
    """Slots that are not archived."""

    def and_now(self, folder: RunFolder) -> Most:
        """With what lies there at this moment."""
        names = folder.filesystem.list
        return Most(
            weights=max(self.weights, len(names("weights"))),
            checkpoints=max(self.checkpoints, len(names("checkpoints"))),
            groups=max(self.groups, len(folder.groups.shards.lying())),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps; the slope needs more than 100 (300)")
    parser.add_argument("--keep", type=Path, help="folder to run in and to leave as it is; none: a temporary one")
    parser.add_argument("--database", type=Path, help="a finished run's folder: say what it left on disk, run nothing")
    arguments = parser.parse_args()
    if arguments.database:
        print_disk(RunFolder.open(str(arguments.database.absolute())), None)
        return
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-") as temporary:
        place = arguments.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        folder = begin(place.absolute(), {**CHANGES, "stop": {**CHANGES["stop"], "max_steps": arguments.steps}})
        began = time.monotonic()
        seen, most = watched(folder, arguments.steps)
        print(f"{arguments.steps} steps in {time.monotonic() - began:.0f} s, {load_average()}\n")
        print_memory(seen)
        print_disk(folder, most)


def watched(folder: RunFolder, steps: int) -> tuple[dict[str, list[Seen]], Most]:
    """Run all stages to the end and look at them all the while."""
    watch = _Watch(folder)
    with stages(folder, STAGES) as (supervisor, started), bar("memory", steps) as progress:

        def look() -> None:
            step = watch.look(started)
            progress.reach(step, f"step {step}")

        until_ended(supervisor, started["learner"], look)
        for name in ("generator", "scorer"):
            supervisor.wait(started[name])
        until_ended(supervisor, started["recorder"], look, finish=True)
    return watch.seen, watch.most


class _Watch:
    """Every look that was taken at the stages and their folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.seen: defaultdict[str, list[Seen]] = defaultdict(list)
        self.most = Most()
        self._folder = folder

    def look(self, started: Mapping[str, StageProcess]) -> int:
        """Take one; the step that the run is at."""
        step = newest_step(self._folder)
        self.most = self.most.and_now(self._folder)
        for name, process in started.items():
            for label, pids in ((name, [process.pid]), (f"{name}'s children", children(process.pid))):
                found = [reading for pid in pids if (reading := read(pid)) is not None]
                if found:
                    self.seen[label].append(Seen(step=step, reading=_sum(found)))
        return step


def _sum(readings: list[Reading]) -> Reading:
    return Reading(
        resident_mb=sum(one.resident_mb for one in readings),
        private_mb=sum(one.private_mb for one in readings),
        cpu_seconds=sum(one.cpu_seconds for one in readings),
    )


def print_memory(seen: dict[str, list[Seen]]) -> None:
    """Every stage's memory at step 100 and at the end, and its slope."""
    rows = [_row(name, found) for name, found in seen.items() if len([one for one in found if one.step >= 100]) > 2]
    print_table(
        [
            "memory",
            "resident MB at 100",
            "at the end",
            "private MB at 100",
            "at the end",
            "slope MB/step",
            "private",
            "flat",
        ],
        rows,
    )


def _row(name: str, found: list[Seen]) -> list[str]:
    late = [one for one in found if one.step >= 100]
    steps = [one.step for one in late]
    resident, private = ([getattr(one.reading, kind) for one in late] for kind in ("resident_mb", "private_mb"))
    slopes = [_slope(steps, values) for values in (resident, private)]
    return [
        name,
        *(f"{value:.1f}" for value in (resident[0], resident[-1], private[0], private[-1])),
        *(f"{slope:+.4f}" for slope in slopes),
        "yes" if max(slopes) < FLAT_MB_PER_STEP else "NO",
    ]


def _slope(steps: list[int], values: list[float]) -> float:
    return float(np.polyfit(steps, values, 1)[0])


def print_disk(folder: RunFolder, most: Most | None) -> None:
    """What lies in the folder, and the database's bytes a row."""
    files = [path for path in Path(folder.local).rglob("*") if path.is_file()]
    by_place: dict[str, list[int]] = defaultdict(list)
    for path in files:
        by_place[path.relative_to(folder.local).parts[0]].append(path.stat().st_size)
    at_most = {} if most is None else _at_most(most)
    print()
    print_table(
        ["on disk", "files", "MB", "most at once"],
        [
            [name, len(sizes), f"{sum(sizes) / 1e6:.2f}", at_most.get(name, "")]
            for name, sizes in sorted(by_place.items(), key=lambda entry: -sum(entry[1]))
        ],
    )
    rows = query(folder, "SELECT sum(estimated_size)::BIGINT AS n FROM duckdb_tables()").to_pydict()["n"][0]
    size = folder.database.stat().st_size
    print_archive(folder)
    print(f"\ndatabase: {size / 1e6:.1f} MB, {rows} rows, {size / rows:.0f} bytes a row")


def _at_most(most: Most) -> dict[str, str]:
    return {
        "weights": f"{most.weights} folders",
        "checkpoints": f"{most.checkpoints} folders",
        "archive": f"{most.groups} groups not in it",
    }


def print_archive(folder: RunFolder) -> None:
    """What an archived group takes, beside what its slot took."""
    sql = "SELECT sum(slot_bytes)::BIGINT AS bytes, count(*) AS groups FROM groups"
    (slots,) = query(folder, sql).to_pylist()
    archived = sum(path.stat().st_size for path in (Path(folder.local) / "archive" / "groups").glob("*"))
    number = slots["groups"]
    print(f"\narchive: {archived / number:.0f} bytes a group, whose slot took {slots['bytes'] / number:.0f}")


if __name__ == "__main__":
    main()
