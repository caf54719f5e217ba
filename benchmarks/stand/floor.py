"""The least that a step's arithmetic takes here: its matrix products, and nothing else, on the step's own shapes.

    PYTHON -m stand.floor '{"model": …, "threads": 2, …}'

CPU seconds of one thread, shared out evenly: nothing computes faster on so many cores, and other work on the machine lends
the figure little.

Forward and backward of every token once (a prompt is counted once for its group), the head where a token is trained,
prefill, and one pass of the weights for each token that is decoded. Left out: attention, norms, sampling, the optimizer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

DECODED_AT_A_TIME = 8
"""Tokens of a completion that are decoded in earnest; the others take as long."""


class Floor(NamedTuple):
    """Seconds of a step, with every thread at work all the time."""

    learning: float
    sampling: float


def main() -> None:
    settings = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(1)
    with torch.no_grad():
        seconds = measured(settings)._asdict()
    print(json.dumps({name: value / settings["threads"] for name, value in seconds.items()}))


def measured(settings: dict[str, Any]) -> Floor:
    """On one thread. `settings`: model, dtype, groups, num_generations, prompt_tokens, completion_tokens."""
    import torch

    layers, head = weights_of(settings["model"], getattr(torch, settings["dtype"]))
    groups, rollouts = settings["groups"], settings["groups"] * settings["num_generations"]
    prompts = groups * settings["prompt_tokens"]
    trained = rollouts * settings["completion_tokens"]
    inputs = Inputs(layers[0].dtype)
    learning = seconds_of(lambda: passes(layers, head, inputs, prompts + trained, trained))
    prefill = seconds_of(lambda: forward(layers, inputs, prompts))
    steps = min(DECODED_AT_A_TIME, settings["completion_tokens"])
    decoding = seconds_of(lambda: decode(layers, head, inputs, rollouts, steps))
    return Floor(learning, prefill + decoding * settings["completion_tokens"] / steps)


def weights_of(model: str, dtype: Any) -> tuple[list[Tensor], Tensor]:
    """Every weight of the layers, and that of the head: with a tied model the embedding's."""
    from safetensors import safe_open

    with safe_open(Path(model, "model.safetensors"), "pt") as file:
        found = {name: file.get_tensor(name).to(dtype) for name in file.keys()}
    layers = [tensor for name, tensor in found.items() if ".layers." in name and tensor.ndim == 2]
    return layers, found.get("lm_head.weight", found["model.embed_tokens.weight"])


class Inputs:
    """Random matrices, each made once."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._made: dict[tuple[int, int], Tensor] = {}

    def of(self, rows: int, columns: int) -> Tensor:
        import torch

        if (rows, columns) not in self._made:
            self._made[rows, columns] = torch.randn(rows, columns).to(self._dtype)
        return self._made[rows, columns]


def forward(weights: Iterable[Tensor], inputs: Inputs, rows: int) -> None:
    for weight in weights:
        inputs.of(rows, weight.shape[1]) @ weight.t()


def backward(weights: Iterable[Tensor], inputs: Inputs, rows: int) -> None:
    """Into the inputs, and into the weights."""
    for weight in weights:
        grad = inputs.of(rows, weight.shape[0])
        grad @ weight
        grad.t() @ inputs.of(rows, weight.shape[1])


def passes(layers: list[Tensor], head: Tensor, inputs: Inputs, rows: int, trained: int) -> None:
    forward(layers, inputs, rows)
    forward([head], inputs, trained)
    backward([head], inputs, trained)
    backward(layers, inputs, rows)


def decode(layers: list[Tensor], head: Tensor, inputs: Inputs, rollouts: int, steps: int) -> None:
    for _ in range(steps):
        forward([*layers, head], inputs, rollouts)


def seconds_of(work: Callable[[], None]) -> float:
    """CPU seconds, the second time: the first one also makes the inputs."""
    work()
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
