"""Requests that the tests of this room send, and what a plain forward says about the answers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import CompletionRequest, Sampling

END = 1


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length}/{seed}").choices(range(10, 250), k=length)


def group(
    prompt_ids: list[int], seeds: Iterable[int], stop: Iterable[int] = (END,), **sampling: object
) -> list[CompletionRequest]:
    settings = Sampling(**({"max_completion_length": 12} | sampling))
    return [
        CompletionRequest(prompt_ids=prompt_ids, seed=seed, sampling=settings, stop_ids=frozenset(stop))
        for seed in seeds
    ]


def bits_of(turns: Iterable[TurnRecord]) -> list[tuple[list[int], list[float]]]:
    return [(turn.output_ids, turn.output_log_probs) for turn in turns]


def forced_distributions(folder: Path, turn: TurnRecord, sampling: Sampling) -> Tensor:
    """Log-probs `[T, V]` that each output token was drawn from, by one plain forward and the textbook's filters."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([turn.prompt_ids + turn.output_ids])).logits[0]
    logits = logits[len(turn.prompt_ids) - 1 : -1].double() / sampling.temperature
    return torch.stack([filtered(row, sampling) for row in logits])


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    order = logits.argsort(descending=True).tolist()
    order = order[: sampling.top_k or len(order)]
    probs = logits[order].softmax(0).tolist()
    most = max(probs)
    kept = [
        token
        for place, token in enumerate(order)
        if (sampling.top_p == 1.0 or math.fsum(probs[:place]) < sampling.top_p)
        and probs[place] >= sampling.min_p * most
    ]
    return torch.full_like(logits, -math.inf).index_copy(0, torch.tensor(kept), logits[kept]).log_softmax(0)
