"""One learner step under each objective, beside the same step under DAPO's.

    python benchmarks/losses.py [--rounds 5]

The batch and the model of `learner_step`, one thread, a whole step each: forward, loss, backward, clip, AdamW. Objectives take
turns, so that what else the machine does strikes them alike. A figure is the best of the rounds, a ratio is of process CPU
seconds. Score centering reads eight more tokens at each place, and what looks ahead forwards the rows twice: their ratio is
what that costs. The others' forward is DAPO's.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from learner_step import COMPLETION_TOKENS, MICRO_TOKENS, VOCABULARY, make_model, make_samples
from stand.runs import load_average
from stand.tables import bar, print_table

from agrpo.aggregations import aggregations
from agrpo.config import OptimizerSection
from agrpo.config.objective import CorrectionSection, EntropySection, MasksSection
from agrpo.losses import losses
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.packing.sequence import Sequence
from agrpo.policy.determinism import make_deterministic
from agrpo.policy.optimizer import build_optimizer
from agrpo.policy.update import update
from agrpo.policy.verifying import verify_packing
from agrpo.records.sample import Sample
from agrpo.records.tokens import StepTotals
from agrpo.records.top_tokens import TopTokens

NUM_TOP = 8
FIRST = "dapo"


def objectives() -> dict[str, Objective]:
    """By name; the first is what the others are held against."""
    token_mean, sequence_mean, sequence_sum = (
        aggregations.build(name, {}) for name in ("token_mean", "sequence_mean", "sequence_sum")
    )
    clip = Clip(epsilon_high=0.28, importance_min=0.0, importance_max=math.inf)
    whole = replace(clip, level="sequence")
    dapo = Objective(loss=clip, aggregation=token_mean)
    return {
        FIRST: dapo,
        "grpo": replace(dapo, aggregation=sequence_mean),
        "two-sided": replace(dapo, loss=replace(clip, delta=4.0)),
        "gspo": replace(dapo, loss=whole, aggregation=sequence_mean),
        "luspo": replace(dapo, loss=whole, aggregation=sequence_sum),
        "cispo": replace(dapo, loss=losses.build("cispo", {})),
        "sapo": replace(dapo, loss=losses.build("sapo", {}), aggregation=sequence_mean),
        "vespo": replace(dapo, loss=losses.build("vespo", {})),
        "gmpo": replace(dapo, loss=losses.build("gmpo", {}), aggregation=sequence_mean),
        "dapo, corrected": replace(dapo, correction=CorrectionSection(mode="sequence_mask")),
        "dapo, off-policy mask": replace(dapo, masks=MasksSection(off_policy_threshold=0.5)),
        "score centering": replace(dapo, loss=losses.build("score_centering", {})),
        "dapo, bonus": replace(dapo, entropy=EntropySection(coefficient=0.01)),
        "dapo, 80/20": replace(dapo, masks=MasksSection(top_entropy=0.2)),
    }


def with_top(samples: list[Sample]) -> list[Sample]:
    """The same with most likely tokens of the sampler, the trained one first."""
    made: list[Sample] = []
    for sample in samples:
        trained = np.asarray(sample.sequence.trained)
        targets = np.asarray(sample.sequence.tokens, np.int64)[trained]
        ids = (targets[:, None] + np.arange(NUM_TOP)) % VOCABULARY
        top = TopTokens(ids.astype(np.int32), np.full(ids.shape, -5.8, np.float32))
        made.append(replace(sample, sequence=replace(sample.sequence, top=top)))
    return made


def step_of(objective: Objective, samples: list[Sample]) -> Callable[[], float]:
    """Takes one more step of a model of its own, and returns its loss."""
    model = make_model()
    verify_packing(model)
    optimizer = build_optimizer(model, OptimizerSection(learning_rate=1e-4))
    packing = Sequence()
    rows = [packing.lay_out([samples[number] for number in row]) for row in packing.place(samples, MICRO_TOKENS)]
    num_tokens = sum(sample.sequence.num_trained for sample in samples)
    totals = StepTotals(
        num_tokens=num_tokens,
        num_samples=len(samples),
        max_completion_length=COMPLETION_TOKENS[1],
        num_entropy_tokens=num_tokens,
        entropy_coefficient=objective.entropy.coefficient,
    )

    def step() -> float:
        return update(
            model,
            optimizer,
            rows,
            objective=objective,
            totals=totals,
            temperature=1.0,
            learning_rate=1e-4,
            max_grad_norm=1.0,
        ).loss

    return step


def measure(rounds: int) -> dict[str, float]:
    """CPU seconds of each objective's best step."""
    samples = make_samples()
    topped = with_top(samples)
    steps = {
        name: step_of(objective, topped if objective.loss.num_top else samples)
        for name, objective in objectives().items()
    }
    best = dict.fromkeys(steps, math.inf)
    with bar("objectives", (1 + rounds) * len(steps)) as progress:
        for number in range(1 + rounds):
            for name, step in steps.items():
                began = time.process_time()
                step()
                if number > 0:
                    best[name] = min(best[name], time.process_time() - began)
                progress.advance(name)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=5, help="steps of each objective, after one that does not count (5)"
    )
    rounds = parser.parse_args().rounds
    make_deterministic(threads=1)
    best = measure(rounds)
    print(f"one thread, best of {rounds}; {load_average()}\n")
    rows = [[name, f"{seconds:.3f}", f"{seconds / best[FIRST]:.3f}"] for name, seconds in best.items()]
    print_table(["a whole step under", "CPU s", "of DAPO's"], rows)


if __name__ == "__main__":
    main()
