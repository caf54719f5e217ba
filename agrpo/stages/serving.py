"""Serving a published version: load it into the engine, check the probe, and only then acknowledge it.

An engine that answers and keeps the old weights is found here, before a token is sampled under a wrong label.
"""

from __future__ import annotations

import time

from agrpo.engines import Engine
from agrpo.errors import ProbeMismatch, StoreLostWrites
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Acknowledgement, WeightsReady
from agrpo.weights.filesystem import check_weights

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""Largest accepted difference of a probe's log-probs, nats: rounding of the dtype over two different kernels."""


async def serve_version(folder: RunFolder, engine: Engine, ready: WeightsReady, engine_name: str, dtype: str) -> None:
    """Load and acknowledge `ready`. Raises `ProbeMismatch` with both numbers, or `StoreLostWrites`."""
    weights = folder.filesystem.local_folder(ready.folder)
    if weights is None:
        raise StoreLostWrites(
            f"version {ready.version} was published as {ready.folder}, which is gone; `agrpo resume` writes it again"
        )
    check_weights(weights, ready.digest)
    await engine.load(weights, ready.version)
    found = await engine.next_token_logprobs(ready.probe.token_ids, ready.probe.top_ids)
    expected = ready.probe.top_logprobs
    difference = max(abs(one - other) for one, other in zip(found, expected, strict=True))
    if not difference <= TOLERANCE[dtype]:
        place = max(range(len(found)), key=lambda index: abs(found[index] - expected[index]))
        raise ProbeMismatch(
            f"the engine was told to load version {ready.version} and serves other weights: after the probe's "
            f"{len(ready.probe.token_ids)} tokens it gives token {ready.probe.top_ids[place]} a log-prob of "
            f"{found[place]:.5f}, the learner {expected[place]:.5f}; up to {TOLERANCE[dtype]} is rounding in {dtype}"
        )
    folder.write_acknowledgement(
        Acknowledgement(
            engine=engine_name, version=ready.version, acknowledged_at=time.time(), probe_difference=difference
        )
    )
