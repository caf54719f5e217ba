"""Trained tokens a second, from prompt to optimizer, beside TRL's GRPOTrainer on the same real model.

    python benchmarks/against_trl.py                       20 minutes on two cores, and 540 MB of weights
    python benchmarks/against_trl.py --quick               one round of two steps each
    python benchmarks/against_trl.py --dtype bfloat16      a table of its own: never compare types across tables
    python benchmarks/against_trl.py --trl-python trl/bin/python --vllm-environment .venv-vllm

SmolLM2-135M-Instruct, 4 prompts x 8 completions x 64 tokens a step, the same prompts, reward, loss and optimizer, float32,
all on two cores. TRL samples, then trains, on two threads. agrpo does both at once, the learner on two threads
(`workers.learner_threads`) and the generator on one, at most two versions apart. The ways take turns, so that what else the
machine does strikes them alike; read the ratios.

TRL 1.16 is installed once, into an environment of its own in a cache folder (a gigabyte and a half). vLLM is measured where
an environment with it is found: `make vllm` makes one. The model comes from examples/smollm2/prepare.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from stand.real_steps import RealSteps
from stand.runs import load_average
from stand.tables import print_table
from stand.top_logprobs import TOP
from stand.turns import PEER, SHAPE, THREADS, Measured, Plan, measure_in_turns
from stand.words import write_prompts

from agrpo.engines.serving_vllm.environment import find_installation
from agrpo.errors import MissingPackage

HERE = Path(__file__).parent
MODEL = HERE.parent / "runs" / "start" / "smollm2"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agrpo" / "trl-1.16.0"
TRL, TORCH = "trl==1.16.0", "torch==2.13.0"


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-", dir=arguments.scratch) as temporary:
        plan = _plan(arguments, Path(temporary))
        measured = measure_in_turns(plan)
    print(f"{plan.rounds} rounds of {plan.steps} steps, {plan.dtype}, {load_average()}\n")
    print_speeds(measured)
    print_learners(measured)
    print_the_rest(measured)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each turn, warm ones not counted (3)")
    parser.add_argument("--rounds", type=int, default=2, help="turns that each way takes (2)")
    parser.add_argument("--quick", action="store_true", help="one round of two steps")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights and products")
    parser.add_argument("--model", type=Path, default=MODEL, help="a folder written by save_pretrained (SmolLM2)")
    parser.add_argument("--trl-python", type=Path, help="an interpreter that has trl 1.16; none: one is made")
    parser.add_argument("--vllm-environment", help="folder of the environment that has vLLM; none: looked for")
    parser.add_argument("--without-vllm", action="store_true", help="leave vLLM out")
    parser.add_argument("--scratch", help="where runs are written, 3 GB at a time (the folder for temporary files)")
    return parser.parse_args()


def _plan(arguments: argparse.Namespace, place: Path) -> Plan:
    if not (arguments.model / "config.json").exists():
        if arguments.model != MODEL:
            raise SystemExit(f"--model {arguments.model}: no model is there; give a folder written by save_pretrained")
        subprocess.run([sys.executable, str(HERE.parent / "examples" / "smollm2" / "prepare.py")], check=True)
    return Plan(
        model=arguments.model.absolute(),
        prompts=write_prompts(place / "prompts.jsonl"),
        place=place,
        dtype=arguments.dtype,
        steps=2 if arguments.quick else arguments.steps,
        rounds=1 if arguments.quick else arguments.rounds,
        trl_python=(arguments.trl_python or trl_interpreter()).absolute(),
        vllm=None if arguments.without_vllm else _vllm(arguments.vllm_environment),
    )


def trl_interpreter() -> Path:
    """The interpreter that has TRL, in the cache folder; made where it is not."""
    python = CACHE / "bin" / "python"
    done = CACHE / "whole"
    if not done.exists():
        print(f"installing {TRL} into {CACHE}: some minutes, once", file=sys.stderr)
        venv.create(CACHE, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", TORCH, TRL], check=True)
        done.touch()
    return python


def _vllm(environment: str | None) -> str | None:
    try:
        return str(find_installation(environment).python.parent.parent)
    except MissingPackage as missing:
        if environment is not None:
            raise SystemExit(f"--vllm-environment: {missing}") from None
        print(f"without vLLM: {missing}", file=sys.stderr)
        return None


def print_speeds(measured: Measured) -> None:
    """The result, and how far both are from what the machine can do."""
    peer = measured.sides[PEER]
    floor = median(each.learning + each.sampling for each in measured.floors)
    rows = []
    for name, side in measured.sides.items():
        step = side.seconds / side.steps
        rows.append(
            [
                name,
                f"{step:.1f}",
                f"{side.cpu_seconds / side.steps:.1f}",
                f"{side.speed:.1f}",
                f"{side.speed / peer.speed:.2f}",
                f"{(peer.cpu_seconds / peer.trained) / (side.cpu_seconds / side.trained):.2f}",
                f"{floor / step * side.trained / side.steps / SHAPE.trained:.0%}",
            ]
        )
    columns = ["way", "s/step", "CPU s/step", "trained tokens/s", "of TRL", "of TRL, by CPU s", "of the floor"]
    print_table(columns, rows)
    learning = median(each.learning for each in measured.floors)
    print(
        f"\nfloor: {floor:.1f} s a step for the matrix products alone on {THREADS} cores, {learning:.1f} s of it forward and "
        "backward, each prompt once"
    )


def print_learners(measured: Measured) -> None:
    """Seconds of a step by what they were spent on. In a pipeline generation passes beside the rest."""
    names = ("generate", "wait", "forward", "backward", "optimizer", "sync")
    rows = [
        [name, *(f"{side.parts[part] / side.steps:.1f}" if part in side.parts else "" for part in names)]
        for name, side in measured.sides.items()
    ]
    print()
    print_table(["s/step", *names], rows)


def print_the_rest(measured: Measured) -> None:
    """Overlap, what log-probs cost, and what a publish costs."""
    rows = []
    for name, side in measured.sides.items():
        if not side.ours:
            continue
        busy = sum(sum(each.busy.values()) for each in side.ours)
        tops = {count: median(seconds) for count, seconds in measured.top[name].items()}
        publish, copy = (median(_all(side.ours, what)) for what in ("publish", "copy"))
        rows.append(
            [
                name,
                f"{busy / side.seconds:.2f}",
                f"{tops[TOP] / tops[0]:.2f}",
                f"{publish:.2f} s",
                f"{copy:.2f} s",
                f"{publish / copy:.2f}",
                f"{median(_all(side.ours, 'serve')):.2f} s",
            ]
        )
    columns = ["", "overlap", f"{TOP} log-probs / none", "publish", "copying", "ratio", "publish to first use"]
    print()
    print_table(columns, rows)
    print("\noverlap: seconds in which generator, scorer and learner were busy, added up, over wall time")


def _all(runs: Sequence[RealSteps], what: str) -> list[float]:
    return [value for run in runs for value in getattr(run, what)]


if __name__ == "__main__":
    main()
