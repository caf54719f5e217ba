"""Whether the servers of a run can be started here, or asked where they run elsewhere: found before anything begins."""

from __future__ import annotations

import asyncio
import os

from agrpo.config import RunConfig
from agrpo.engines import Needs
from agrpo.engines.serving_vllm.command import server_command
from agrpo.engines.serving_vllm.environment import find_installation
from agrpo.engines.vllm import Vllm
from agrpo.errors import ConfigError, EngineError, MissingPackage
from agrpo.runs.memory import Machine, machine_here

HEALTH_SECONDS = 2.0
"""How long a server that runs elsewhere may take to say that it is there."""


def check_servers(config: RunConfig) -> list[str]:
    """A sentence for each thing that keeps servers from being started, or used. Starts nothing, and asks nobody."""
    engine = config.engine
    if not isinstance(engine, Vllm):
        return []
    problems = _check_own(config, engine) if engine.serve else _check_key(engine)
    if engine.weights == "nccl" and not problems and _has_no_gpu(machine_here()):
        problems.append(
            'engine.weights = "nccl": the learner sends from its GPU, and nvidia-smi lists none here that may be used; set "auto" '
            'or "filesystem"'
        )
    return problems


def _has_no_gpu(machine: Machine) -> bool:
    """Whether it is known to have none."""
    return not machine.gpus and machine.gpus_doubt is None


def ask_servers(config: RunConfig) -> list[str]:
    """A line for each server that runs elsewhere: whether it answers now. Waits 2 s at most."""
    engine = config.engine
    if not isinstance(engine, Vllm) or engine.serve:
        return []
    return asyncio.run(_ask_all(engine))


async def _ask_all(engine: Vllm) -> list[str]:
    return await asyncio.gather(*(_ask(engine, url) for url in engine.urls()))


async def _ask(engine: Vllm, url: str) -> str:
    from agrpo.engines.serving_vllm.endpoint import Endpoint

    endpoint = Endpoint(url, os.environ.get(engine.api_key_variable) if engine.api_key_variable else None)
    try:
        await endpoint.text("/health", HEALTH_SECONDS)
    except EngineError as error:
        return f"warning: {error}; a run waits engine.start_seconds = {engine.start_seconds:g} s for a server to answer"
    finally:
        await endpoint.close()
    return f"{url} answers; whether it was started as the run needs it is asked when the run begins"


def _check_own(config: RunConfig, engine: Vllm) -> list[str]:
    try:
        found = find_installation(engine.environment)
        needs = Needs(sampling=config.sampling, adapter_rank=config.served_adapter_rank)
        processes = config.workers.learner_processes
        server_command(engine, config.model, needs, found, port=0, learner_processes=processes)
    except MissingPackage as error:
        return [f"engine.serve: {error}"]
    except ConfigError as error:
        return error.problems
    return []


def _check_key(engine: Vllm) -> list[str]:
    variable = engine.api_key_variable
    if variable is None or os.environ.get(variable):
        return []
    return [f"engine.api_key_variable: no environment variable {variable} is set here; set it to the servers' key"]
