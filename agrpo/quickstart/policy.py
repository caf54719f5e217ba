"""A policy from nothing: a tokenizer trained on demonstrations, and a model that has seen them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agrpo.quickstart.progress import transformers_bars_hidden
from agrpo.quickstart.question import Demonstration
from agrpo.quickstart.tokenizer import END, PAD, ROLES, THINK, train_tokenizer
from agrpo.quickstart.warm_start import OnStep, warm_start

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

CORPUS_SEED, CORPUS_SIZE = 0, 4000
"""Demonstrations the tokenizer is trained on; the same for every seed of a run, so that token ids mean the same."""

_CONTROL = re.compile("|".join(map(re.escape, (PAD, END, *ROLES))))


def make_policy(
    folder: Path,
    demonstrations: Callable[[int], Iterator[Demonstration]],
    *,
    seed: int,
    steps: int,
    has_positions: bool = True,
    words: Sequence[str] = THINK,
    num_threads: int | None = None,
    on_step: OnStep | None = None,
) -> None:
    """Write model and tokenizer to `folder`, as `save_pretrained` does, after `steps` of warm start on `demonstrations(seed)`.

    `words`: texts that are a token each, such as the marks around a thought. `num_threads`, `on_step`: as `warm_start`
    takes them.
    """
    # Read when torch is first imported. Else threads that wait for each other spin, and where other work shares the
    # cores a step of the warm start takes 3.0 s in place of 0.2 s (two threads on two cores).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from agrpo.quickstart.model import make_model

    with transformers_bars_hidden():
        tokenizer = tokenizer_of(islice(demonstrations(CORPUS_SEED), CORPUS_SIZE), words)
        model = make_model(tokenizer, seed=seed, has_positions=has_positions)
        shown = demonstrations(seed)
        warm_start(model, tokenizer, shown, steps=steps, num_threads=num_threads, on_step=on_step)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def tokenizer_of(demonstrations: Iterator[Demonstration], words: Sequence[str] = THINK) -> PreTrainedTokenizerFast:
    """A tokenizer for what these conversations say, as its own template writes them, tools and calls included."""
    blank = train_tokenizer([], words)
    return train_tokenizer((text for shown in demonstrations for text in _texts(blank, shown)), words)


def _texts(blank: PreTrainedTokenizerBase, shown: Demonstration) -> list[str]:
    """What stands between the control tokens."""
    tools = cast("Any", list(shown.schemas) or None)
    written = cast("str", blank.apply_chat_template(shown.messages, tools=tools, tokenize=False))
    return [text for text in _CONTROL.split(written) if text]
