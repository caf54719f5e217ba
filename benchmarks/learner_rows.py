"""What the learner's rows and its output head save: shared prefixes, logits that are never held, and TRL's learner beside it.

    python benchmarks/learner_rows.py                       a tiny model: a minute
    python benchmarks/learner_rows.py --smollm2             SmolLM2-135M: ten minutes, and 540 MB of weights
    python benchmarks/learner_rows.py --smollm2 --trl       and TRL's GRPOTrainer on the same completions
    python benchmarks/learner_rows.py --smollm2 --quick     one round, one shape: under two minutes without TRL

One thread; the ways take turns, so that what else the machine does strikes them alike. A figure is the best of the rounds,
ratios are of process CPU seconds. Forward and backward alone: no optimizer, no generation. Every sample of a shape is equally
long, so a padded batch wastes nothing. Memory is that of a process of its own (`stand/peaks.py`, Linux alone).

SmolLM2-135M comes from examples/smollm2/prepare.py, TRL 1.16 from an environment that `against_trl` makes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from against_trl import HERE, MODEL, trl_interpreter
from stand.peaks import HEAD_WAYS
from stand.rows import (
    Turn,
    cpu_seconds,
    laid_out,
    packed_turn,
    packing_ratio,
    padded_turn,
    sampled_by,
    samples_of,
    take_turns,
    wall_seconds,
)
from stand.runs import load_average, make_model
from stand.tables import Bar, bar, print_table
from stand.top_logprobs import Shape
from stand.trl_peer import trl_learner
from transformers.utils.logging import disable_progress_bar

from agrpo.config import ModelSection
from agrpo.losses.score_centering import ScoreCentering
from agrpo.packing.sequence import Sequence
from agrpo.packing.tree import Tree
from agrpo.policy.determinism import make_deterministic
from agrpo.policy.flops import Arithmetic, arithmetic_of
from agrpo.policy.model import load_policy
from agrpo.policy.peak import measured_peak

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agrpo.packing import Packing
    from agrpo.records.sample import Sample


def _shape(groups: int, size: int, prompt: int, completion: int) -> Shape:
    return Shape(groups=groups, num_generations=size, prompt_tokens=prompt, completion_tokens=completion)


SHAPES = (_shape(1, 8, 32, 128), _shape(1, 8, 272, 64), _shape(1, 16, 224, 16))
"""Packing ratios 1.2, 3.4 and 8."""
TINY_SHAPES = (_shape(8, 8, 64, 256), _shape(8, 8, 272, 64), _shape(8, 16, 224, 16))
PEER_SHAPE, QUICK_PEER_SHAPE = _shape(2, 8, 128, 64), _shape(1, 8, 128, 64)
PLANNED = _shape(8, 8, 256, 256)
PLANNED_ON_SMOLLM2 = _shape(4, 8, 45, 64)
"""A step of `against_trl`."""
STEP = (1, 8, 128, 64)
HEAD = {"num_targets": 2048, "hidden_size": 576, "vocabulary": 49152}
"""The head of SmolLM2-135M."""
TREE, SEQUENCE, PADDED, CENTERING, PEER = "tree", "sequence", "padded", "tree, score centering", "TRL GRPOTrainer"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, and how it is measured."""

    name: str
    path: Path
    policy: PreTrainedModel
    arithmetic: Arithmetic
    dtype: str
    rounds: int
    advance: Callable[[str], None]

    @property
    def vocabulary(self) -> int:
        return self.policy.config.get_text_config().vocab_size

    def peak(self) -> float:
        """FLOP/s of one thread, now."""
        return measured_peak(getattr(torch, self.dtype))

    def samples(self, shape: Shape) -> list[Sample]:
        return sampled_by(self.policy, samples_of(shape, self.vocabulary), Tree())

    def flops(self, samples: list[Sample], packing: Packing) -> int:
        return sum(self.arithmetic.flops(row) for _, row in laid_out(samples, packing))


@dataclass(kw_only=True)
class Tables:
    """Rows of what is printed, by table."""

    rows: list[list[str]] = field(default_factory=list)
    peer: list[list[str]] = field(default_factory=list)
    planning: list[list[str]] = field(default_factory=list)
    memory: list[list[str]] = field(default_factory=list)


def main() -> None:
    arguments = _arguments()
    make_deterministic(threads=1)
    tables, loads = Tables(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-") as temporary, bar("learner rows", 1) as progress:
        place = Path(temporary)
        for subject in subjects(arguments, place, lambda what: progress.reach(0, what)):
            tables.rows += measure_rows(subject, _shapes(arguments))
            if arguments.trl or arguments.trl_python:
                python = (arguments.trl_python or trl_interpreter()).absolute()
                tables.peer += measure_peer(subject, QUICK_PEER_SHAPE if arguments.quick else PEER_SHAPE, python, place)
            if not (arguments.quick and arguments.smollm2):
                tables.planning.append(measure_planning(subject, PLANNED_ON_SMOLLM2 if arguments.smollm2 else PLANNED))
            tables.memory += measure_recomputing(subject, STEP)
            loads.append(os.getloadavg()[0])
        head = measure_head(arguments.dtype, 1 if arguments.quick else arguments.rounds, progress)
    print_tables(tables, head, f"{arguments.dtype}, one thread, load {min(loads):.1f} to {max(loads):.1f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true", help="measure SmolLM2-135M, not the tiny model")
    parser.add_argument("--model", type=Path, default=MODEL, help="where SmolLM2 is, or goes (runs/start/smollm2)")
    parser.add_argument(
        "--trl", action="store_true", help="measure TRL's learner too, in the environment of against_trl"
    )
    parser.add_argument("--trl-python", type=Path, help="an interpreter that has trl 1.16; implies --trl")
    parser.add_argument("--rounds", type=int, default=2, help="turns that each way takes (2)")
    parser.add_argument("--quick", action="store_true", help="one round; of SmolLM2 the packing ratio 3.4 alone")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights and products")
    return parser.parse_args()


def _shapes(arguments: argparse.Namespace) -> tuple[Shape, ...]:
    if not arguments.smollm2:
        return TINY_SHAPES
    return SHAPES[1:2] if arguments.quick else SHAPES


def subjects(arguments: argparse.Namespace, place: Path, advance: Callable[[str], None]) -> Iterator[Subject]:
    """The model that is asked for, ready to train."""
    path: Path = arguments.model.absolute() if arguments.smollm2 else make_model(place)
    if not (path / "config.json").exists():
        prepare = HERE.parent / "examples" / "smollm2" / "prepare.py"
        subprocess.run([sys.executable, str(prepare), "--to", str(path)], check=True)
    disable_progress_bar()
    policy = load_policy(ModelSection(path=str(path), dtype=arguments.dtype), "cpu")
    arithmetic = arithmetic_of(policy)
    assert arithmetic is not None, f"the arithmetic of {path} is not known"
    yield Subject(
        name="SmolLM2-135M" if arguments.smollm2 else "tiny",
        path=path,
        policy=policy,
        arithmetic=arithmetic,
        dtype=arguments.dtype,
        rounds=1 if arguments.quick else arguments.rounds,
        advance=advance,
    )


def measure_rows(subject: Subject, shapes: tuple[Shape, ...]) -> list[list[str]]:
    """Tree rows beside rows of whole samples and a padded batch, at each packing ratio."""
    rows: list[list[str]] = []
    for shape in shapes:
        samples = subject.samples(shape)
        ways = {
            TREE: lambda samples=samples: packed_turn(subject.policy, samples, Tree()),
            SEQUENCE: lambda samples=samples: packed_turn(subject.policy, samples, Sequence()),
            PADDED: lambda samples=samples: padded_turn(subject.policy, samples),
        }
        turns = take_turns(ways, subject.rounds, subject.advance)
        ratio = packing_ratio(samples, laid_out(samples, Tree()))
        arithmetic = subject.flops(samples, Sequence()) / subject.flops(samples, Tree())
        for name, taken in turns.items():
            gain = speed_up(taken, turns[TREE])
            gains = [f"{gain:.2f}", f"{ratio:.2f}", f"{gain / ratio:.2f}", f"{arithmetic:.2f}"]
            rows.append(
                [
                    f"{subject.name}, {shape.num_generations} x ({shape.prompt_tokens} + {shape.completion_tokens})",
                    name,
                    f"{cpu_seconds(taken):.3f}",
                    f"{wall_seconds(taken):.3f}",
                    *(["", f"{ratio:.2f}", "", ""] if name == TREE else gains),
                    _apart(taken, turns[TREE]),
                ]
            )
    return rows


def speed_up(turns: list[Turn], others: list[Turn]) -> float:
    """How many times as fast the others are, by CPU seconds."""
    return cpu_seconds(turns) / cpu_seconds(others)


def _apart(turns: list[Turn], others: list[Turn]) -> str:
    """Of log-probs, at most."""
    return f"{np.abs(turns[0].logprobs - others[0].logprobs).max():.1e}"


def measure_peer(subject: Subject, shape: Shape, python: Path, place: Path) -> list[list[str]]:
    """The learner beside TRL's, and both beside what the matrix products alone would take."""
    samples = subject.samples(shape)
    needed = subject.flops(samples, Tree())
    with trl_learner(python, subject.path, samples, shape=shape, dtype=subject.dtype, place=place) as peer:
        ways = {
            PEER: peer,
            TREE: lambda: packed_turn(subject.policy, samples, Tree()),
            CENTERING: lambda: packed_turn(subject.policy, samples, Tree(), ScoreCentering()),
        }
        # The first turn also pays for what is built once.
        take_turns({PEER: peer}, 1, subject.advance)
        peaks = [subject.peak()]
        turns = take_turns(ways, subject.rounds, subject.advance)
        peaks.append(subject.peak())
    floor = needed / max(peaks)
    ratio = packing_ratio(samples, laid_out(samples, Tree()))
    return [
        [
            name,
            f"{cpu_seconds(taken):.2f}",
            f"{wall_seconds(taken):.2f}",
            f"{speed_up(turns[PEER], taken):.2f}",
            f"{ratio:.2f}",
            f"{floor / cpu_seconds(taken):.0%}",
            f"{max(peaks) / 1e9:.0f}",
            f"{taken[0].loss:.6f}",
            f"{taken[0].grad_norm:.4f}",
            _apart(taken, turns[PEER]),
        ]
        for name, taken in turns.items()
    ]


def measure_planning(subject: Subject, shape: Shape) -> list[str]:
    """Choosing the rows of a step and laying them out, beside the step's forward and backward."""
    samples = subject.samples(shape)
    planning: list[float] = []
    for _ in range(20):
        began = time.process_time()
        laid_out(samples, Tree())
        planning.append(time.process_time() - began)
    turns = take_turns({TREE: lambda: packed_turn(subject.policy, samples, Tree())}, 1, subject.advance)
    step = cpu_seconds(turns[TREE])
    return [
        f"{subject.name}, {len(samples)} x ({shape.prompt_tokens} + {shape.completion_tokens})",
        f"{median(planning) * 1e3:.1f}",
        f"{step:.2f}",
        f"{median(planning) / step:.2%}",
    ]


def measure_recomputing(subject: Subject, shape: tuple[int, int, int, int]) -> list[list[str]]:
    """Most memory of a step with activations kept, and computed again."""
    shared = {"what": "step", "model": str(subject.path), "dtype": subject.dtype, "shape": shape}
    found: dict[str, dict[str, float]] = {}
    for name, recomputes in {"activations kept": False, "computed again": True}.items():
        subject.advance(name)
        found[name] = peak_of({**shared, "recomputes": recomputes})
    kept = found["activations kept"]
    return [
        [
            f"{subject.name}, {name}",
            f"{each['mb']:.0f}",
            f"{each['mb'] / kept['mb']:.2f}",
            f"{each['cpu_seconds'] / kept['cpu_seconds']:.2f}",
        ]
        for name, each in found.items()
    ]


def measure_head(dtype: str, rounds: int, progress: Bar) -> list[list[str]]:
    """Memory and time of the output head, without a model."""
    peaks: dict[str, list[dict[str, float]]] = {way: [] for way in HEAD_WAYS}
    for _ in range(rounds):
        for way, found in peaks.items():
            progress.reach(0, way)
            found.append(peak_of({"what": "head", "way": way, "dtype": dtype, **HEAD}))
    full = peaks["full logits"]
    most, least = max(each["mb"] for each in full), min(each["cpu_seconds"] for each in full)
    return [
        [
            way,
            f"{max(each['mb'] for each in found):.0f}",
            f"{max(each['mb'] for each in found) / most:.2f}",
            f"{min(each['cpu_seconds'] for each in found):.2f}",
            f"{min(each['cpu_seconds'] for each in found) / least:.2f}",
        ]
        for way, found in peaks.items()
    ]


def peak_of(settings: dict[str, Any]) -> dict[str, float]:
    """What `stand.peaks` says in a process of its own, which has one thread. Raises `SystemExit`."""
    command = [sys.executable, "-m", "stand.peaks", json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"stand.peaks ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def print_tables(tables: Tables, head: list[list[str]], conditions: str) -> None:
    columns = [
        "rows of",
        "way",
        "CPU s",
        "s",
        "tree is faster",
        "packing ratio",
        "over ratio",
        "by arithmetic",
        "apart",
    ]
    _print(f"forward and backward: {conditions}", columns, tables.rows)
    print("\nby arithmetic: FLOPs of whole samples over those of the tree. apart: log-probs from the tree's, at most")
    columns = [
        "learner",
        "CPU s",
        "s",
        "times as fast",
        "packing ratio",
        "of the ceiling",
        "GFLOP/s",
        "loss",
        "gradient",
        "apart",
    ]
    if tables.peer:
        _print(f"beside TRL: {conditions}", columns, tables.peer)
        print("\nceiling: FLOPs of the tree rows at the speed of large matrix products, measured in the same run")
    if tables.planning:
        columns = ["a step of", "planning, ms", "forward and backward, CPU s", "share"]
        _print(f"planning and laying out: {conditions}", columns, tables.planning)
    _print(f"a step's memory: {conditions}", ["", "MB", "of kept", "CPU s, of kept"], tables.memory)
    columns = [f"head, {HEAD['num_targets']} x {HEAD['vocabulary']}", "MB", "of full", "CPU s", "of full"]
    _print(f"output head: {conditions}", columns, head)
    print(f"\nMB: most resident memory above what was there before, gradients included; {load_average()}")


def _print(title: str, columns: list[str], rows: list[list[str]]) -> None:
    print(f"\n{title}\n")
    print_table(columns, rows)


if __name__ == "__main__":
    main()
