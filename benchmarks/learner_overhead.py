"""Where the wall time of a learner's step goes, and how much of it is neither waiting nor arithmetic.

    python benchmarks/learner_overhead.py                 20 steps at the quickstart's settings, groups made beforehand
    python benchmarks/learner_overhead.py runs/quickstart-thinking-…     a run's own steps, from its database

Overhead is all that is not waiting for groups, forward, backward or optimizer. Publishing (sync) is part of the protocol,
every `weight_sync_steps`: the share is given with it and without. With groups made beforehand nothing else wants the
cores and nothing is waited for, so the share is the highest that these settings can have.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from stand.material import add_groups
from stand.runs import begin, load_average, newest_step, stages, until_ended
from stand.tables import bar, print_table

from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.recorder import record_once

GROUPS = 32
ARITHMETIC = ("forward", "backward", "optimizer")
PARTS = ("wait", *ARITHMETIC, "read", "plan", "digest", "record", "sync", "checkpoint", "other")
MEANING = {
    "wait": "for scored groups",
    "read": "scores and groups",
    "plan": "advantages, rows, the plan's write",
    "digest": "of every tensor",
    "record": "tokens, the done record, the fence",
    "sync": "publishing the weights, with their probe",
    "other": "rows, samples, metrics, log, hints",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="a finished run's folder; none: make groups and train on them here")
    parser.add_argument(
        "--steps", type=int, default=20, help="steps to train here, the first of which is left out (20)"
    )
    arguments = parser.parse_args()
    if arguments.run:
        print_parts(Path(arguments.run))
        return
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-") as temporary:
        folder = begin(Path(temporary), {"stop": {"max_steps": arguments.steps}, "async": {"max_staleness": 2}})
        add_groups(folder, range(GROUPS * arguments.steps), groups_per_version=GROUPS)
        train(folder, arguments.steps)
        record_once(folder, Database(folder.database))
        print_parts(folder.database)


def train(folder: RunFolder, steps: int) -> None:
    """The learner alone, as the process that it always is."""
    with stages(folder, ["learner"]) as (supervisor, started), bar("learner", steps) as progress:
        until_ended(supervisor, started["learner"], lambda: progress.reach(newest_step(folder)))


def print_parts(database: Path) -> None:
    """The mean step, part by part. The first one also pays for what is built once."""
    columns = ", ".join(f"median({part}_seconds) AS {part}" for part in PARTS)
    sql = f"SELECT count(*) AS steps, median(step_seconds) AS step, {columns} FROM live_steps WHERE step > 1 AND NOT empty"
    (found,) = query(database, sql).to_pylist()
    total = sum(found[part] for part in PARTS)
    rows = [[part, f"{1000 * found[part]:.1f}", f"{found[part] / total:.1%}", MEANING.get(part, "")] for part in PARTS]
    print(f"median of {found['steps']} steps, {load_average()}\n")
    print_table(["part of a step", "ms", "share", ""], [*rows, ["all", f"{1000 * total:.1f}", "100.0%", ""]])
    busy = [found[part] for part in PARTS if part not in ("wait", *ARITHMETIC)]
    print(
        f"\noverhead: {sum(busy) / total:.1%} of a step; without publishing {(sum(busy) - found['sync']) / total:.1%}"
    )


if __name__ == "__main__":
    main()
