"""What the write-ahead log costs in every step, and what it saves: resuming against training the same steps again.

    python benchmarks/resume.py               40 steps at the quickstart's settings, killed, and resumed
    python benchmarks/resume.py --steps 100

The learner is killed (SIGKILL) after the last step but one, with checkpoint 0 as the only one, so that the next one replays
every step. Groups are made beforehand: a real run also spares their generation, which is most of its time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import tempfile
import time
from pathlib import Path
from statistics import median

from stand.material import add_groups
from stand.runs import begin, load_average, newest_step, stages, until_ended
from stand.tables import bar, print_table

from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Done, Event

GROUPS = 32
DEADLINE_SECONDS = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="steps to train and to replay (40)")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-") as temporary:
        changes = {
            "stop": {"max_steps": steps + 1},
            "async": {"max_staleness": 2},
            "checkpoint": {"every_seconds": 1e6},
        }
        folder = begin(Path(temporary), changes)
        add_groups(folder, range(GROUPS * (steps + 1)), groups_per_version=GROUPS)
        train_and_kill(folder, steps)
        resume(folder, steps)
        print_resuming(folder, steps)
        print_write_ahead(folder)


def train_and_kill(folder: RunFolder, steps: int) -> None:
    """Train until so many steps are done, and kill the learner in the middle of what comes then."""
    with stages(folder, ["learner"]) as (_, started), bar("training", steps) as progress:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while newest_step(folder) < steps:
            if time.monotonic() > deadline:
                raise SystemExit(f"the learner did {newest_step(folder)} of {steps} steps in {DEADLINE_SECONDS:.0f} s")
            progress.reach(newest_step(folder))
            time.sleep(0.01)
        os.kill(started["learner"].pid, signal.SIGKILL)


def resume(folder: RunFolder, steps: int) -> None:
    """Start the learner again, to the end of the run."""
    with stages(folder, ["learner"]) as (supervisor, started), bar("resuming", steps) as progress:
        until_ended(supervisor, started["learner"], lambda: progress.reach(len(replayed(folder))))


def replayed(folder: RunFolder) -> list[Event]:
    """What the learners said of replayed steps, in order."""
    found = [
        folder.event(stream, number)
        for stream in folder.event_streams()
        if stream.startswith("learner")
        for number in folder.event_numbers(stream)
    ]
    return sorted((event for event in found if event and event.kind == "replayed"), key=lambda event: event.at)


def done_steps(folder: RunFolder) -> list[Done]:
    found = [folder.done(StepKey(0, step)) for step in folder.done_steps(0)]
    return [done for done in found if done is not None]


def print_resuming(folder: RunFolder, steps: int) -> None:
    """Seconds a step, first time and replayed, and the time from the start of the attempt to its first own step."""
    first = done_steps(folder)[:steps]
    attempt, events = folder.attempt(1), replayed(folder)
    assert attempt is not None
    trained = [later.finished_at - one.finished_at for one, later in itertools.pairwise(first)]
    again = [later.at - one.at for one, later in itertools.pairwise(events)]
    loading = max(0.0, events[0].at - attempt.started_at - median(again))
    total = events[-1].at - attempt.started_at
    print(f"{len(events)} steps replayed, bit for bit; {load_average()}\n")
    rows = [
        ["a step, the first time", f"{1000 * median(trained):.0f} ms", "1.00"],
        ["a step, replayed", f"{1000 * median(again):.0f} ms", f"{median(again) / median(trained):.2f}"],
        ["all of them, the first time", f"{sum(trained):.1f} s", "1.00"],
        ["load and replay all of them", f"{total:.1f} s", f"{total / sum(trained):.2f}"],
        ["of which loading", f"{loading:.1f} s", f"{loading / sum(trained):.2f}"],
    ]
    print_table(["resuming", "", "ratio"], rows)


def print_write_ahead(folder: RunFolder) -> None:
    """What a step pays so that it can be replayed."""
    timings = [done.timings for done in done_steps(folder)[1:]]
    step = median(one.step_seconds - one.wait_seconds for one in timings)
    parts = {
        "plan: advantages, rows, its write": median(one.plan_seconds for one in timings),
        "digest of every tensor": median(one.digest_seconds for one in timings),
        "done: tokens, record, fence": median(one.record_seconds for one in timings),
    }
    parts["all three"] = sum(parts.values())
    print()
    rows = [[name, f"{1000 * seconds:.1f} ms", f"{seconds / step:.1%}"] for name, seconds in parts.items()]
    print_table(["write-ahead", "", "of a step"], rows)


if __name__ == "__main__":
    main()
