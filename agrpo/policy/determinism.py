"""Makes torch repeat itself bit for bit, as a replay of recorded steps needs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

import torch


def threads_of(document: Mapping[str, Any]) -> int:
    """How many threads a run's learner computes with, as its `run.json` says."""
    return document.get("learner_threads", document["threads"])


def make_deterministic(threads: int) -> None:
    """Refuse kernels that do not repeat, and compute on `threads` threads of this process."""
    # cuBLAS reads it when it is first used; this size is the one its documentation asks for.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Without this, every new tensor would first be filled with nan.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(threads)


def machine_facts() -> dict[str, str]:
    """What decides the bits that the same arithmetic gives in another process: two machines that agree repeat each other."""
    facts = {
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
    }
    return facts | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def seed_draws(seed: int) -> None:
    """Set torch's random state, so that what a step draws depends on the step alone."""
    torch.manual_seed(seed)
