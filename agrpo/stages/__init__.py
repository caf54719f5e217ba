"""The stages of a run: small loops, one process each, that meet only in the run's folder.

`python -m agrpo.stages NAME RUN_URL` runs one of them. NAME is one of `STAGES`, or the dotted path of a module of
yours; either way the module's `run(context: StageContext) -> None` is the stage. `process.Supervisor` starts, watches
and ends them.
"""

from __future__ import annotations

from agrpo.stages.context import StageContext, new_incarnation

__all__ = ["STAGES", "StageContext", "new_incarnation"]

STAGES = ("generator", "scorer", "learner", "recorder")
"""The stages of agrpo, in the order a group passes them."""
