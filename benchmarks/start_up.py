"""Where the time goes between `agrpo train` and the first optimizer step.

    python benchmarks/start_up.py              the quickstart's settings, a model with random weights, one step
    python benchmarks/start_up.py --rounds 3   once in a new Prefect home, then twice again in the same

Every moment is the first sight of what the run writes at it (looked for every 20 ms). The stages start side by side, so
what one waits for another pays: `after` names what a moment follows, and its part is the time since then. A second
table gives what the imports cost alone, in a fresh interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stand.runs import JUDGE, load_average, quickstart_settings
from stand.tables import bar, print_table

from agrpo.quickstart.run_file import run_file

LOOK_SECONDS = 0.02
DEADLINE_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Something that a starting run reaches."""

    name: str
    pattern: str
    """Of a file below the folder that holds the run and Prefect's home."""
    after: str | None
    """The moment that it waits for; None: the command itself."""


MOMENTS = (
    Moment(name="command imported", pattern="../prefect/server.log", after=None),
    Moment(name="Prefect's server answers; run checked", pattern="runs/*/run.json", after="command imported"),
    Moment(
        name="flow begun, first stage started",
        pattern="runs/*/events/supervisor-*/*.json",
        after="Prefect's server answers; run checked",
    ),
    Moment(
        name="scorer imported",
        pattern="runs/*/beat/scorer.json",
        after="flow begun, first stage started",
    ),
    Moment(name="recorder's database made", pattern="runs/*/run.duckdb", after="flow begun, first stage started"),
    Moment(
        name="learner imported (torch, transformers)",
        pattern="runs/*/attempts/*.json",
        after="flow begun, first stage started",
    ),
    Moment(
        name="model loaded, packing verified, checkpoint",
        pattern="runs/*/checkpoints/*",
        after="learner imported (torch, transformers)",
    ),
    Moment(
        name="version 0 published",
        pattern="runs/*/versions/*/*.json",
        after="model loaded, packing verified, checkpoint",
    ),
    Moment(
        name="generator imported, its model loaded",
        pattern="runs/*/beat/generator.json",
        after="flow begun, first stage started",
    ),
    Moment(name="version 0 served", pattern="runs/*/acks/*/*.json", after="version 0 published"),
    Moment(name="first ticket claimed", pattern="runs/*/claims/*/*.json", after="version 0 served"),
    Moment(name="first group", pattern="runs/*/groups/*/*.arrow", after="first ticket claimed"),
    Moment(name="first group scored", pattern="runs/*/scored/*/*.arrow", after="first group"),
    Moment(name="first step planned", pattern="runs/*/steps/*/*.plan.json", after="first group scored"),
    Moment(name="first step done", pattern="runs/*/steps/*/*.done.json", after="first step planned"),
)
IMPORTS = ("agrpo", "agrpo.cli", "agrpo.stages.scorer", "agrpo.stages.recorder", "prefect", "torch", "transformers")
FULL = ("agrpo.stages.generator, agrpo.engines.decoding.engine", "agrpo.stages.learner")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="starts to measure; the first has a new Prefect home (1)")
    arguments = parser.parse_args()
    modules = (*IMPORTS, *FULL)
    with (
        tempfile.TemporaryDirectory(prefix="agrpo-bench-") as temporary,
        bar("start-up", arguments.rounds + len(modules)) as progress,
    ):
        settings = write_settings(Path(temporary))
        starts: list[dict[str, float]] = []
        for number in range(arguments.rounds):
            progress.advance(f"start {number + 1}")
            starts.append(start(Path(temporary), settings, number))
        imports: list[list[str]] = []
        for module in modules:
            progress.advance(f"import {module}")
            imports.append([f"import {module}", *(f"{value:.2f}" for value in import_seconds(module))])
    print(load_average())
    for name, found in (("first start, new Prefect home", starts[:1]), ("later starts, median", starts[1:])):
        if found:
            print()
            print_table([name, "s since the command", "its part, s", "share", "after"], rows_of(found))
    print()
    print_table(["in a fresh interpreter", "s", "CPU s"], imports)


def write_settings(folder: Path) -> Path:
    """The quickstart's run file for one step, with a reward that random weights earn as well."""
    rewards = [{"name": "reasoning_gym"}, JUDGE]
    tree = quickstart_settings(folder, {"rewards": rewards, "stop": {"max_steps": 1}})
    tree["run"] = {**tree["run"], "name": "start"}
    file = folder / "run.toml"
    file.write_text(run_file(tree, "A start to measure."))
    return file


def start(folder: Path, settings: Path, number: int) -> dict[str, float]:
    """Seconds from the command to each moment."""
    place = folder / f"start{number}"
    place.mkdir()
    (folder / "prefect" / "server.log").unlink(missing_ok=True)
    command = [sys.executable, "-m", "agrpo", "train", str(settings), "--set", f"run.dir={place / 'runs'}"]
    env = {
        **os.environ,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    env.pop("PREFECT_API_URL", None)
    began = time.monotonic()
    with open(place / "output.log", "wb") as log, subprocess.Popen(command, env=env, stdout=log, stderr=log) as process:
        seen = watched(place, began, lambda: process.poll() is None)
    if process.returncode:
        raise SystemExit((place / "output.log").read_text()[-2000:])
    return {**seen, "command ended": time.monotonic() - began}


def watched(place: Path, began: float, goes_on: Callable[[], bool]) -> dict[str, float]:
    """First sight of each moment, while the command runs."""
    seen: dict[str, float] = {}
    while goes_on():
        for moment in MOMENTS:
            if moment.name not in seen and next(place.glob(moment.pattern), None) is not None:
                seen[moment.name] = time.monotonic() - began
        if time.monotonic() - began > DEADLINE_SECONDS:
            raise SystemExit(f"no first step within {DEADLINE_SECONDS:.0f} s; reached: {', '.join(seen)}")
        time.sleep(LOOK_SECONDS)
    return seen


def rows_of(starts: list[dict[str, float]]) -> list[list[str]]:
    """The moments in the order they come, with what each waited for."""
    at = {name: statistics.median(seen[name] for seen in starts) for name in starts[0]}
    total = at["first step done"]
    rows: list[list[str]] = []
    for moment in sorted(MOMENTS, key=lambda moment: at[moment.name]):
        part = at[moment.name] - (at[moment.after] if moment.after else 0.0)
        rows.append(
            [moment.name, f"{at[moment.name]:.2f}", f"{part:.2f}", f"{part / total:.0%}", moment.after or "the command"]
        )
    return [
        *rows,
        ["command ended", f"{at['command ended']:.2f}", f"{at['command ended'] - total:.2f}", "", "the first step"],
    ]


def import_seconds(modules: str) -> tuple[float, float]:
    """Wall and CPU seconds of a fresh interpreter that imports these and ends."""
    code = (
        f"import {modules}; import os, sys; t = os.times(); print(t.user + t.system); sys.stdout.flush(); os._exit(0)"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return time.perf_counter() - began, float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
