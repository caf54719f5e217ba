"""Ranks for the tests of a module: this process and its children, over gloo. And tiny models in folders."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from agrpo.aggregations import aggregations
from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.losses.clip import Clip
from agrpo.objective import Objective
from agrpo.packing.sequence import Sequence
from agrpo.policy.trainee import Origin, UpdateSettings
from agrpo.records.batch import Row
from agrpo.records.sample import Sample, TokenSequence
from agrpo.records.tokens import StepTotals
from agrpo.stages.ranks import Recruiter

LLAMA = {
    "vocab_size": 65,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
"""A vocabulary that no number of ranks divides."""
ROWS = [[0, 1], [2], [3, 4], []]
"""Of two micro-batches on two ranks, the last of which has nothing to do."""
TRAINED = 3


def recruiter_of(*, silent_seconds: float = 30.0, deadline_seconds: float = 60.0) -> Recruiter:
    return Recruiter(silent_seconds=silent_seconds, deadline_seconds=deadline_seconds, stop=threading.Event())


@pytest.fixture(scope="module")
def recruiter() -> Iterator[Recruiter]:
    """Keeps the ranks that were formed last for the next test that wants as many."""
    with recruiter_of() as recruiter:
        yield recruiter


@pytest.fixture(scope="module")
def origin_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Origin]:
    """`origin_of(tied=…)`: a random Llama of two layers, in a folder; other keywords are tables of settings."""

    def made(*, tied: bool = False, model: dict[str, str] | None = None, **adapter: object) -> Origin:
        folder: Path = tmp_path_factory.mktemp("llama")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = transformers.LlamaConfig(**LLAMA, tie_word_embeddings=tied)
            AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return Origin(
            model=ModelSection(path=str(folder), **(model or {})),
            adapter=AdapterSection(**adapter),
            optimizer=OptimizerSection(learning_rate=1e-3),
            seed=0,
            threads=1,
        )

    return made


def rows_of_step(step: int) -> list[Row]:
    """Five samples of several lengths, in `ROWS`."""
    generator = torch.Generator().manual_seed(step)
    samples = [_sample(number, length, generator) for number, length in enumerate([9, 8, 7, 6, 12])]
    return [Sequence().lay_out([samples[number] for number in row]) for row in ROWS]


def numbers_of_step(step: int, max_grad_norm: float = 1.0) -> UpdateSettings:
    return UpdateSettings(
        objective=Objective(
            loss=Clip(importance_min=0.0, importance_max=math.inf), aggregation=aggregations["token_mean"]()
        ),
        totals=StepTotals(num_tokens=5 * TRAINED, num_samples=5, max_completion_length=16),
        temperature=1.0,
        learning_rate=1e-3,
        max_grad_norm=max_grad_norm,
        seed=step,
    )


def _sample(number: int, length: int, generator: torch.Generator) -> Sample:
    untrained = length - TRAINED
    sequence = TokenSequence(
        tokens=torch.randint(0, LLAMA["vocab_size"], (length,), generator=generator).tolist(),
        trained=[False] * untrained + [True] * TRAINED,
        sampler_logprobs=[0.0] * untrained + [-4.0] * TRAINED,
        versions=[0] * length,
    )
    advantage = torch.randn(1, generator=generator).item()
    return Sample(ticket=0, rollout_index=number, sequence_index=0, sequence=sequence, advantage=advantage, staleness=0)
