"""What recording a run into its database costs: rows a second, a look at a folder that has nothing new, a run beside itself.

    python benchmarks/recorder_cost.py              all three, in a minute
    python benchmarks/recorder_cost.py --pairs 3    the same run with and without its recorder, three times each

1. Rows: groups and scores in the quickstart's shape, read from their slots and committed.
2. A look: the recorder follows each stream from the last number it knows, and lists the whole folder only in its first and
   its last pass. Both, over folders of 100 to 10,000 steps.
3. A run: CPU seconds of the recorder as a share of all stages' (its start and its last pass included), and the difference
   that it makes to the wall time from the first claim to the last step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from stand.material import add_groups
from stand.processes import children, read
from stand.runs import begin, load_average, newest_step, stages, until_ended
from stand.tables import Bar, bar, print_table

from agrpo.database.ledger import Entry, Ledger
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.documents import dump
from agrpo.records.progress import Attempt, Base, Event
from agrpo.stages import STAGES
from agrpo.stages.process import StageProcess
from agrpo.stages.recorder import record_once, unrecorded

ROUNDS = 5
GROUPS = 300
STEPS = (100, 1_000, 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1, help="runs with and runs without a recorder, in turn (1)")
    parser.add_argument("--steps", type=int, default=15, help="steps of each run, at the quickstart's settings (15)")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="agrpo-bench-") as temporary,
        bar("recorder", 1 + len(STEPS) + 2 * arguments.pairs) as progress,
    ):
        place = Path(temporary)
        rows = rows_per_second(place)
        progress.advance("rows")
        looks = [look_row(place, steps, progress) for steps in STEPS]
        runs = measured_runs(place, arguments.pairs, arguments.steps, progress)
    print(f"{load_average()}\n")
    print_table(["recorded at once", "rows/s", "MB/s of slots", "CPU ms/group"], [rows])
    print()
    print_table(["a look at nothing new", "following, CPU ms", "listing all, CPU ms", "ratio"], looks)
    print()
    print_table(["a run", "wall s", "recorder, CPU s", "all stages, CPU s", "share of CPU"], runs[0])
    print(
        f"\nwith its recorder a run takes {runs[1]:+.1%} of the wall time it takes without (median of {arguments.pairs})"
    )


def rows_per_second(place: Path) -> list[str]:
    """Record some hundred groups from nothing."""
    folder = begin(place, {}, "rows")
    add_groups(folder, range(GROUPS), groups_per_version=32)
    database = Database(folder.database)
    database.ledger()
    began, cpu = time.perf_counter(), time.process_time()
    record_once(folder, database)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    (found,) = query(folder, "SELECT sum(estimated_size)::BIGINT AS n FROM duckdb_tables()").to_pylist()
    size = sum(path.stat().st_size for path in Path(folder.local).glob("*/*/*.arrow"))
    return [
        f"{GROUPS} groups of 8",
        f"{found['n'] / seconds:.0f}",
        f"{size / 1e6 / seconds:.1f}",
        f"{1000 * cpu / GROUPS:.2f}",
    ]


def look_row(place: Path, steps: int, progress: Bar) -> list[str]:
    """CPU time of a pass over a folder of so many steps, all of them recorded."""
    folder = make_folder(place / f"steps{steps}", steps)
    ledger = Ledger()
    for stream in unrecorded(folder, ledger):
        for entry in stream.entries:
            ledger.add(Entry(*entry))
    following, listing = ([] for _ in range(2))
    for _ in range(ROUNDS):
        for whole, seconds in ((False, following), (True, listing)):
            began = time.process_time()
            assert unrecorded(folder, ledger, whole=whole) == []
            seconds.append(time.process_time() - began)
    progress.advance(f"{steps} steps")
    follow, whole = (1000 * statistics.median(seconds) for seconds in (following, listing))
    return [f"{steps} steps", f"{follow:.2f}", f"{whole:.2f}", f"{whole / follow:.0f}"]


def make_folder(place: Path, steps: int) -> RunFolder:
    """The names of a run of so many steps, one group each. What is recorded already is not read, so most are empty."""
    folder = RunFolder(LocalFilesystem(place))
    folder.filesystem.put("run.json", b"{}")
    folder.write_attempt(Attempt(attempt=0, host="h", pid=1, started_at=1.0))
    folder.write_base(Base(attempt=0))
    event = dump(Event(stream="learner-a", number=0, kind="published", at=1.0))
    for number in range(steps):
        step = number + 1
        names = [f"steps/000000/{step:08d}.{kind}" for kind in ("plan.json", "done.json", "tokens.arrow")]
        names += [f"versions/000000/{step:08d}.json", f"acks/generator-a/{step:08d}.json"]
        names += [folder.groups.key(number), folder.scored.key(number)]
        names.append(f"claims/{number // 1000:06d}/{number:012d}.0000.json")
        for name in names:
            write(place / name, b"")
        write(place / f"events/learner-a/{number:08d}.json", event)
    assert folder.done(StepKey(0, steps + 1)) is None
    return folder


def write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.write_bytes(data)


def measured_runs(place: Path, pairs: int, steps: int, progress: Bar) -> tuple[list[list[str]], float]:
    """The same run with and without its recorder in turn: a line for each, and the median difference in wall time."""
    lines: list[list[str]] = []
    differences: list[float] = []
    for pair in range(pairs):
        walls: dict[bool, float] = {}
        for recorded in (True, False) if pair % 2 else (False, True):
            names = STAGES if recorded else [name for name in STAGES if name != "recorder"]
            name = f"run {pair + 1} {'with' if recorded else 'without'} recorder"
            folder = begin(place, {"stop": {"max_steps": steps}}, name.replace(" ", "-"))
            cpu = cpu_of_run(folder, names)
            walls[recorded] = wall_of(folder, steps)
            total = sum(cpu.values())
            share = f"{cpu['recorder'] / total:.1%}" if recorded else ""
            lines.append([name, f"{walls[recorded]:.1f}", f"{cpu.get('recorder', 0):.2f}", f"{total:.1f}", share])
            progress.advance(name)
        differences.append(walls[True] / walls[False] - 1)
    return lines, statistics.median(differences)


def cpu_of_run(folder: RunFolder, names: list[str] | tuple[str, ...]) -> dict[str, float]:
    """Run these stages to the end; CPU seconds of each with its children."""
    cpu: dict[str, float] = {}

    def look(started: dict[str, StageProcess]) -> None:
        for name, process in started.items():
            found = [reading for pid in (process.pid, *children(process.pid)) if (reading := read(pid)) is not None]
            cpu[name] = max(cpu.get(name, 0.0), sum(one.cpu_seconds for one in found))

    with stages(folder, names) as (supervisor, started):
        until_ended(supervisor, started["learner"], lambda: look(started))
        for name in ("generator", "scorer"):
            until_ended(supervisor, started[name], lambda: look(started), seconds=0.02)
        if "recorder" in started:
            until_ended(supervisor, started["recorder"], lambda: look(started), seconds=0.02, finish=True)
    return cpu


def wall_of(folder: RunFolder, steps: int) -> float:
    """Seconds from the first claim to the last step, by the run's own records."""
    claim, done = folder.claims.holder(0), folder.done(StepKey(0, newest_step(folder)))
    assert claim is not None and done is not None and done.step == steps, f"the run ended before step {steps}"
    return done.finished_at - claim.claimed_at


if __name__ == "__main__":
    main()
