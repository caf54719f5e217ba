"""Most memory that one piece of work takes, in a process of its own, on one thread.

    PYTHON -m stand.peaks '{"what": "head", …}'
    PYTHON -m stand.peaks '{"what": "step", …}'

What the kernel calls the high-water mark of resident memory (VmHWM), put back to what is resident now once all inputs are
there (`/proc/self/clear_refs`, Linux alone), less what was resident then. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HEAD_WAYS = ("head", "head, 8 top ids", "full logits", "full logits and entropy")


class Peak(NamedTuple):
    """What a piece of work took."""

    mb: float
    """Above what was resident before it."""
    cpu_seconds: float


def main() -> None:
    settings = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(1)
    works = {"head": head_work, "step": step_work}
    print(json.dumps(measured(works[settings.pop("what")](**settings))._asdict()))


def measured(work: Callable[[], None]) -> Peak:
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _status_mb("VmRSS"), time.process_time()
    work()
    took = time.process_time() - began
    return Peak(_status_mb("VmHWM") - before, took)


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name + ":"))


def head_work(*, way: str, dtype: str, num_targets: int, hidden_size: int, vocabulary: int) -> Callable[[], None]:
    """Log-probs of the targets and their gradient; `way` is one of `HEAD_WAYS`."""
    import torch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    hidden = torch.randn(num_targets, hidden_size).to(kind).requires_grad_()
    weight = (torch.randn(vocabulary, hidden_size) / hidden_size**0.5).to(kind).requires_grad_()
    targets = torch.randint(0, vocabulary, (num_targets,))
    if way.startswith("head"):
        return _tiled(hidden, weight, targets, 8 if "top" in way else 0)
    return _full(hidden, weight, targets, with_entropy="entropy" in way)


def _tiled(hidden: Any, weight: Any, targets: Any, num_top: int) -> Callable[[], None]:
    import torch

    from agrpo.policy.head import Head
    from agrpo.policy.tiles import read_targets

    top = (targets[:, None] + 7 * torch.arange(num_top)) % len(weight) if num_top else None
    head = Head(weight=weight, bias=None, scale=1.0, softcap=None, temperature=1.0)

    def work() -> None:
        read = read_targets(head, hidden, targets, None, chunk=1024, top_ids=top)
        total = read.logprobs.sum() if read.top_logprobs is None else read.top_logprobs.exp().sum()
        total.backward()

    return work


def _full(hidden: Any, weight: Any, targets: Any, *, with_entropy: bool) -> Callable[[], None]:
    import torch

    def work() -> None:
        logprobs = torch.nn.functional.linear(hidden, weight).float().log_softmax(-1)
        if with_entropy:
            read = logprobs.detach()
            (read.exp() * read).sum(-1)
        logprobs.gather(1, targets[:, None]).sum().backward()

    return work


def step_work(*, model: str, dtype: str, recomputes: bool, shape: list[int]) -> Callable[[], None]:
    """Forward and backward of a step in tree rows, its gradients included; `shape` as in `Shape`."""
    from agrpo.config import ModelSection
    from agrpo.packing.tree import Tree
    from agrpo.policy.model import load_policy
    from stand.rows import packed_turn, samples_of
    from stand.top_logprobs import Shape

    policy = load_policy(ModelSection(path=model, dtype=dtype, activation_checkpointing=recomputes), "cpu")  # type: ignore[arg-type]
    groups, size, prompt, completion = shape
    whole = Shape(groups=groups, num_generations=size, prompt_tokens=prompt, completion_tokens=completion)
    samples = samples_of(whole, policy.config.get_text_config().vocab_size)

    def work() -> None:
        packed_turn(policy, samples, Tree())

    return work


if __name__ == "__main__":
    main()
