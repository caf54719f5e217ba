"""The warm start: supervised steps that teach a fresh policy the form of an answer, and some of its substance."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from agrpo.quickstart.question import Demonstration
from agrpo.quickstart.tokenizer import END, POLICY

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

OnStep = Callable[[int, float], None]
"""Told the number of finished steps and the loss of the last."""

BATCH_SIZE = 64
LEARNING_RATE = 4e-3
WARMUP_STEPS = 30
DECAYING_SHARE = 0.6
"""Of the steps, the last ones over which the rate falls to `LOWEST_RATE_SHARE`. A rate that stays high leaves the
worked answers too inaccurate for a run to repair."""
LOWEST_RATE_SHARE = 0.03
MOST_THREADS = 4
"""A batch holds too little work for more."""


def warm_start(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    demonstrations: Iterator[Demonstration],
    *,
    steps: int,
    num_threads: int | None = None,
    on_step: OnStep | None = None,
) -> None:
    """Train `model` in place on the next `steps` batches of demonstrations.

    Equal demonstrations, weights and `num_threads` give equal bits. None: the cores of this process, at most
    `MOST_THREADS`, which is right only while no other process computes.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_share(step, steps))
    model.train()
    with _threads(num_threads or min(_num_cores(), MOST_THREADS)):
        for step in range(1, steps + 1):
            loss = _loss(model, _encode(tokenizer, list(islice(demonstrations, BATCH_SIZE))))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if on_step is not None:
                on_step(step, float(loss.detach()))
    model.eval()


def rate_share(step: int, steps: int) -> float:
    """Share of `LEARNING_RATE` in step number `step`, from 0: up, level, and down to the end."""
    return min(1.0, (step + 1) / WARMUP_STEPS, max(LOWEST_RATE_SHARE, (steps - step) / (steps * DECAYING_SHARE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    ids: torch.Tensor
    """int64 `[rows, T]`, padded on the right, so that causal attention needs no mask."""
    weights: torch.Tensor
    """float32 `[rows, T]`: of the loss on each token; 0 on what others say, and on padding."""


def _encode(tokenizer: PreTrainedTokenizerBase, demonstrations: list[Demonstration]) -> _Batch:
    import torch

    conversations = [_ids(tokenizer, demonstration) for demonstration in demonstrations]
    longest = max(map(len, conversations))
    ids = torch.zeros(len(conversations), longest, dtype=torch.long)
    weights = torch.zeros(len(conversations), longest)
    opens, ends = (cast("int", tokenizer.convert_tokens_to_ids(mark)) for mark in (POLICY, END))
    for row, (tokens, demonstration) in enumerate(zip(conversations, demonstrations, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        said = list(_said(tokens, opens, ends))
        for place in said:
            weights[row, place.start : place.stop] = 1.0
        weights[row, said[0].start] = demonstration.first_token_weight
    return _Batch(ids=ids, weights=weights)


def _ids(tokenizer: PreTrainedTokenizerBase, demonstration: Demonstration) -> list[int]:
    tools = list(demonstration.schemas) or None
    encoded = tokenizer.apply_chat_template(demonstration.messages, tools=cast("Any", tools), return_dict=False)
    return cast("list[int]", encoded)


def _said(tokens: list[int], opens: int, ends: int) -> Iterator[range]:
    """Places of what the policy says, message by message: behind the mark of its role, with the token that ends it."""
    for place, token in enumerate(tokens):
        if token == opens:
            yield range(place + 1, tokens.index(ends, place) + 1)


def _loss(model: Qwen3ForCausalLM, batch: _Batch) -> torch.Tensor:
    """Mean over the tokens that the policy says of their weighted negative log-likelihood."""
    import torch.nn.functional as F

    weights = batch.weights[:, 1:]
    trained = weights > 0
    hidden = model.model(input_ids=batch.ids[:, :-1]).last_hidden_state[trained]
    losses = F.cross_entropy(model.lm_head(hidden), batch.ids[:, 1:][trained], reduction="none")
    return (losses * weights[trained]).sum() / trained.sum()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _threads(count: int) -> Generator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
