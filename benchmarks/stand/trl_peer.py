"""TRL's learner as one more way of `stand.rows`: a process of the interpreter that has TRL, asked for one turn at a time."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from agrpo.records.sample import Sample
from stand.rows import Turn
from stand.top_logprobs import Shape
from stand.words import write_prompts

HERE = Path(__file__).parents[1]


@contextmanager
def trl_learner(
    python: Path, model: Path, samples: Sequence[Sample], *, shape: Shape, dtype: str, place: Path
) -> Iterator[Callable[[], Turn]]:
    """A call that has TRL forward and backward these samples once. Raises `SystemExit` where its process ends."""
    batch = place / "batch.json"
    batch.write_text(json.dumps(batch_of(samples)))
    settings = {
        "model": str(model),
        "prompts": str(write_prompts(place / "prompts.jsonl")),
        "batch": str(batch),
        "dtype": dtype,
        "threads": 1,
        "groups": shape.groups,
        "num_generations": shape.num_generations,
        "completion_tokens": shape.completion_tokens,
        "learning_rate": 1e-6,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", "stand.trl_learner", json.dumps(settings)]
    log = place / "trl.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            cwd=HERE,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        _answer(process.stdout, log)
        question, answers = process.stdin, process.stdout

        def turn() -> Turn:
            question.write("\n")
            question.flush()
            told = _answer(answers, log)
            return Turn(**{**told, "logprobs": np.array(told["logprobs"])})

        yield turn
        process.stdin.close()


def _answer(lines: IO[str], log: Path) -> dict[str, Any]:
    for line in lines:
        if line.startswith('{"'):
            return json.loads(line)
    raise SystemExit(f"TRL's process ended:\n{log.read_text()[-3000:]}")


def batch_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """What TRL's trainer is given: all prompts are equally long, and so are all completions."""
    batch: dict[str, list[Any]] = {
        "prompt_ids": [],
        "completion_ids": [],
        "sampler_logprobs": [],
        "advantages": [],
    }
    for sample in samples:
        sequence = sample.sequence
        begins = len(sequence.tokens) - sequence.num_trained
        batch["prompt_ids"].append(sequence.tokens[:begins])
        batch["completion_ids"].append(sequence.tokens[begins:])
        batch["sampler_logprobs"].append(sequence.sampler_logprobs[begins:])
        batch["advantages"].append(sample.advantage)
    return batch
