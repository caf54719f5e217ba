"""The stages of a run: small loops, one process each, that meet only in the run's folder.

`python -m agrpo.stages NAME RUN_URL` runs one of them. NAME is one of `KINDS`, or a further worker of its kind such as
`generator-2`, or the dotted path of a module of yours; either way the module's `run(context: StageContext) -> None` is
the stage. `process.Supervisor` starts, watches and ends them.
"""

from __future__ import annotations

from agrpo.stages.context import StageContext, name_of, new_incarnation
from agrpo.stages.names import KINDS, SERVER, STAGES, kind_of, number_of, stages_of

__all__ = [
    "KINDS",
    "SERVER",
    "STAGES",
    "StageContext",
    "kind_of",
    "name_of",
    "new_incarnation",
    "number_of",
    "stages_of",
]
