"""What a reference policy costs: a learner's step with and without a penalty, of all weights and of an adapter.

    python benchmarks/reference_policy.py                  a random model of 14 million weights: two minutes
    python benchmarks/reference_policy.py --model FOLDER   one of yours
    python benchmarks/reference_policy.py --rounds 5

One thread, one row of 32 samples of 27 to 42 tokens, a whole step: forward, loss, backward, clip, AdamW. Each way has a process
of its own, whose peak of resident memory is told. A step is the best of the rounds, in CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from learner_step import make_samples, totals_of
from stand.runs import load_average
from stand.tables import bar, print_table
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from agrpo.aggregations.token_mean import TokenMean
from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.config.objective import DivergenceSection
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.packing.sequence import Sequence
from agrpo.policy.origin import Origin
from agrpo.policy.trainee import UpdateSettings, begin

NUM_SAMPLES, RANK, COEFFICIENT = 32, 16, 0.01
WAYS = {
    "all weights": (None, 0.0),
    "all weights, a frozen copy": (None, COEFFICIENT),
    "adapter": (RANK, 0.0),
    "adapter, switched off": (RANK, COEFFICIENT),
}
"""Rank of the adapter, and weight of the penalty."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one way."""

    step_seconds: float
    peak_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a model; none: a random one")
    parser.add_argument("--rounds", type=int, default=3, help="steps that are timed (3)")
    parser.add_argument("--way", choices=WAYS, help="measure this one alone, in this process, and print it as JSON")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(asdict(measured(arguments.model, arguments.way, arguments.rounds))))
        return
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-") as temporary, bar("reference", len(WAYS)) as progress:
        model = arguments.model or make_model(Path(temporary) / "model")
        costs: dict[str, Cost] = {}
        for way in WAYS:
            costs[way] = in_a_process_of_its_own(model, way, arguments.rounds)
            progress.advance(way)
    print_costs(costs)


def make_model(folder: Path) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=64,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def in_a_process_of_its_own(model: Path, way: str, rounds: int) -> Cost:
    command = [sys.executable, __file__, "--model", str(model), "--way", way, "--rounds", str(rounds)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if ended.returncode:
        raise SystemExit(f"{way}: the process ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return Cost(**json.loads(ended.stdout.splitlines()[-1]))


def measured(model: Path, way: str, rounds: int) -> Cost:
    disable_progress_bar()
    rank, coefficient = WAYS[way]
    divergence = DivergenceSection(coefficient=coefficient)
    origin = Origin(
        model=ModelSection(path=str(model), activation_checkpointing=False),
        adapter=AdapterSection(rank=rank),
        optimizer=OptimizerSection(learning_rate=1e-4),
        divergence=divergence,
        seed=0,
        threads=1,
    )
    trainee, samples = begin(origin), make_samples()[:NUM_SAMPLES]
    settings = UpdateSettings(
        objective=Objective(loss=Clip(), aggregation=TokenMean(), divergence=divergence),
        totals=totals_of(samples),
        temperature=1.0,
        learning_rate=1e-4,
        max_grad_norm=1.0,
        seed=0,
    )
    seconds: list[float] = []
    for _ in range(rounds + 1):  # the first gives AdamW its state
        began = time.process_time()
        trainee.update([Sequence().lay_out(samples)], settings, lambda: None)
        seconds.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Cost(step_seconds=min(seconds[1:]), peak_bytes=peak * (1 if sys.platform == "darwin" else 1024))


def print_costs(costs: dict[str, Cost]) -> None:
    print(f"{load_average()}\n")
    bare = {None: costs["all weights"], RANK: costs["adapter"]}
    rows: list[list[object]] = []
    for way, cost in costs.items():
        without = bare[WAYS[way][0]]
        more = (cost.peak_bytes - without.peak_bytes) / 2**20
        rows.append(
            [
                way,
                f"{cost.step_seconds:.2f}",
                f"{cost.step_seconds / without.step_seconds:.2f}",
                f"{cost.peak_bytes / 2**20:.0f}",
                f"{more:+.0f}" if cost is not without else "",
            ]
        )
    print_table(["way", "CPU s a step", "of without", "peak MiB", "more MiB"], rows)


if __name__ == "__main__":
    main()
