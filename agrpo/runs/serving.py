"""Whether the servers that a run is to start can be started here: found before anything begins."""

from __future__ import annotations

from agrpo.config import RunConfig
from agrpo.engines import Needs
from agrpo.engines.serving_vllm.command import server_command
from agrpo.engines.serving_vllm.environment import find_installation
from agrpo.engines.vllm import Vllm
from agrpo.errors import ConfigError, MissingPackage


def check_servers(config: RunConfig) -> list[str]:
    """A sentence for each thing that keeps the run's own servers from starting; none where it has none. Starts nothing."""
    engine = config.engine
    if not isinstance(engine, Vllm) or not engine.serve:
        return []
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
