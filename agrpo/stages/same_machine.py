"""The same machine: a run that is to repeat bit for bit goes on where arithmetic gives the bits it began with."""

from __future__ import annotations

from agrpo.config import RunConfig
from agrpo.errors import ReplayMismatch
from agrpo.queue.run_folder import RunFolder


def check_machine(folder: RunFolder, config: RunConfig) -> dict[str, str]:
    """This machine's facts. Raises `ReplayMismatch` where a reproducible run began on one with others."""
    from agrpo.policy.determinism import machine_facts

    found = machine_facts()
    first = folder.attempt(0)
    began = {} if first is None else first.machine
    changed = [f"{name}: {began[name]}, here {found.get(name)}" for name in began if began[name] != found.get(name)]
    if changed and config.sampling.reproducible and config.resume.on_difference != "continue":
        raise ReplayMismatch(
            f"{folder.url} is to repeat bit for bit (engine.reproducible) and began on another kind of machine: "
            f"{'; '.join(changed)}. Resume it there, or go on here with other bits: --set resume.on_difference=continue"
        )
    return found
