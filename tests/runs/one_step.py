"""A learner's process with a policy, two rows and two optimizer steps; prints its peak resident bytes.

python -m tests.runs.one_step MODEL SAMPLES LENGTH
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np

import agrpo.stages.learner  # what the stage imports
from agrpo.aggregations.token_mean import TokenMean
from agrpo.config import ModelSection, OptimizerSection
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.packing.sequence import Sequence
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.policy.update import update
from agrpo.records.sample import Sample, TokenSequence
from agrpo.records.tokens import StepTotals


def main(path: str, count: int, length: int) -> None:
    model = load_policy(ModelSection(path=path), "cpu")
    optimizer = build_optimizer(model, OptimizerSection())
    draws = np.random.default_rng(0)
    samples = [_sample(draws.integers(0, model.config.vocab_size, length).tolist()) for _ in range(count)]
    rows = [Sequence().lay_out(samples)] * 2
    totals = StepTotals(num_tokens=2 * count * (length - 1), num_samples=2 * count, max_completion_length=length)
    for _ in range(2):
        update(
            model, optimizer, rows, objective=Objective(loss=Clip(), aggregation=TokenMean()), totals=totals, temperature=1.0,
            learning_rate=1e-6, max_grad_norm=1.0,
        )  # fmt: skip
    print(_peak_bytes())


def _peak_bytes() -> int:
    """Of this program alone: Linux's `ru_maxrss` also knows the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _sample(tokens: list[int]) -> Sample:
    sequence = TokenSequence(
        tokens=tokens,
        trained=[False] + [True] * (len(tokens) - 1),
        sampler_logprobs=[-3.0] * len(tokens),
        versions=[0] * len(tokens),
    )
    return Sample(ticket=0, rollout_index=0, sequence_index=0, sequence=sequence, advantage=1.0, staleness=0)


if __name__ == "__main__":
    assert agrpo.stages.learner
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
