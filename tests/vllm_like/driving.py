"""agrpo's own engine over servers of this room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs, engines
from agrpo.records.sampling import CompletionRequest, Sampling
from tests.vllm_like.server import Server

T = TypeVar("T")
PROMPT = [12, 40, 77, 101, 33]
QUICK = {"start_seconds": 5.0, "outage_seconds": 5.0, "load_seconds": 1.0}
"""Knobs under which a test sees the end of every wait."""


def drive(
    servers: Sequence[Server],
    body: Callable[[Engine], Awaitable[T]],
    *,
    sampling: Sampling | None = None,
    load: bool = True,
    model: Path | None = None,
    **knobs: object,
) -> T:
    """What `body(engine)` gives; with `load`, the servers serve their first weights as version 0."""
    path = model or servers[0].model
    needs = Needs(sampling=sampling or Sampling(max_completion_length=8))

    async def main() -> T:
        part = engines.build("vllm", {**QUICK, "base_urls": [server.url for server in servers], **knobs})
        engine = part(ModelSection(path=str(path)), needs)
        try:
            if load:
                await _load_everywhere(engine, path, len(servers))
            return await body(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


async def _load_everywhere(engine: Engine, weights: Path, num_servers: int) -> None:
    """An engine begins with the servers that it has found, and gives the weights to the others later."""
    await engine.load(weights, 0)
    while len(await engine.next_token_logprobs([5], [6])) < num_servers:
        await asyncio.sleep(0.01)
        await engine.load(weights, 0)


def requests_of(
    seeds: Iterable[int], prompt: Sequence[int] = PROMPT, stop_ids: Iterable[int] = (), **settings: object
) -> list[CompletionRequest]:
    """Requests of eight tokens; fewer only where `stop_ids` are given, for an unseeded draw ends where it likes."""
    sampling = Sampling(**({"max_completion_length": 8, "request_timeout_seconds": 5.0} | settings))
    return [
        CompletionRequest(prompt_ids=list(prompt), seed=seed, sampling=sampling, stop_ids=frozenset(stop_ids))
        for seed in seeds
    ]
