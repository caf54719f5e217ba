"""Makes torch repeat itself bit for bit, as a replay of recorded steps needs."""

from __future__ import annotations

import os

import torch


def make_deterministic(threads: int) -> None:
    """Refuse kernels that do not repeat, and compute on `threads` threads of this process."""
    # cuBLAS reads it when it is first used; this size is the one its documentation asks for.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Without this, every new tensor would first be filled with nan.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(threads)


def seed_draws(seed: int) -> None:
    """Set torch's random state, so that what a step draws depends on the step alone."""
    torch.manual_seed(seed)
