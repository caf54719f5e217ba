"""A stage that fails once `tests.flows.working` is at work in the same folder."""

from __future__ import annotations

import time
from pathlib import Path

from agrpo.errors import ModelError
from agrpo.stages import StageContext


def run(context: StageContext) -> None:
    while not list(Path(context.run_url).glob("ready *")):
        time.sleep(0.01)
    raise ModelError("the model has 3 heads and 2 are needed")
