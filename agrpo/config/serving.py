"""Rules between the settings of an engine that has servers: the run's own, or ones that run elsewhere."""

from __future__ import annotations

from typing import Any

from agrpo.config.sections import WorkersSection
from agrpo.records.sampling import Sampling

OF_OWN_SERVERS = {"replicas": 1, "environment": None, "arguments": [], "max_model_len": None}
"""Settings that say how the run's own servers are started, with what they are where nothing is said."""


def serving_problems(engine: Any, workers: WorkersSection, sampling: Sampling) -> list[str]:
    """What contradicts itself, or would be ignored. Nothing for an engine without servers."""
    serve: bool | None = getattr(engine, "serve", None)
    if serve is None:
        return []
    problems: list[str] = []
    if serve and engine.base_urls:
        problems.append(
            "engine.base_urls: names servers that run elsewhere, and engine.serve = true starts the run's own; leave one of "
            "the two out"
        )
    urls = [url.rstrip("/") for url in engine.base_urls]
    problems += [f'engine.base_urls: "{url}" is listed twice; leave one out' for url in {*urls} if urls.count(url) > 1]
    if not serve:
        ignored = [name for name, unsaid in OF_OWN_SERVERS.items() if getattr(engine, name) != unsaid]
        problems += [
            f"engine.{name}: says how the run's own servers are started, and it has none; set engine.serve = true, or leave "
            "it out"
            for name in ignored
        ]
    longest: int | None = engine.max_model_len
    if serve and longest is not None and longest <= sampling.max_completion_length:
        problems.append(
            f"engine.max_model_len = {longest}: a prompt and a completion of engine.max_completion_length = "
            f"{sampling.max_completion_length} tokens do not fit; raise the first or lower the second"
        )
    if workers.generators > 1:
        problems.append(
            f"workers.generators = {workers.generators}: one generator drives all servers of this engine; leave it at 1, and "
            f"raise {'engine.replicas' if serve else 'the number of engine.base_urls'}"
        )
    return problems
