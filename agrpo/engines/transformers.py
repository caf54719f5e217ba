"""Completions by agrpo's own batched sampler over any causal LM of transformers, in this process, on the CPU."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar

from pydantic import Field

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs
from agrpo.errors import MissingPackage
from agrpo.registry import part


@part
class Transformers:
    """Requests that wait together are decoded together; each token carries the version that sampled it.

    Reproducible requests repeat bit for bit under the same weights, the same wheel of torch, the same kind of processor
    and the same number of threads.
    """

    threads: Annotated[int, Field(ge=1)] | None = None
    """torch threads of this process. None: as many as OMP_NUM_THREADS says, which a run sets for its stages, else half
    the cores."""
    batch_rollouts: Annotated[int, Field(ge=1)] = 512
    """Most requests decoded at once."""

    can_reproduce: ClassVar[bool] = True
    needs_head: ClassVar[bool] = False
    takes_adapters: ClassVar[bool] = False

    def __call__(self, model: ModelSection, needs: Needs | None = None) -> Engine:
        try:
            from agrpo.engines.decoding.engine import start
        except ImportError as error:
            raise MissingPackage(
                f"the engine transformers needs torch and transformers, and {error.name} cannot be imported: {error}; "
                "install both, or choose another engine.name"
            ) from error
        return start(model, threads=self.threads or _threads(), batch_rollouts=self.batch_rollouts)


def _threads() -> int:
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)
