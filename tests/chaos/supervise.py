"""A program that runs stages to their end: `supervise.py FOLDER EXAMPLE...`, with the stages of `stage_examples.py`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from agrpo.stages.process import Supervisor


def main(folder: str, *examples: str) -> None:
    with Supervisor(folder, Path(folder, "logs"), grace_seconds=1.0) as supervisor:
        stages = [supervisor.start("tests.stages.stage_examples", {"EXAMPLE": example}) for example in examples]
        if "FORK" in os.environ and os.fork() == 0:
            # It holds open what its parent's children listen to, and lets go of what the test reads.
            os.closerange(1, 3)
            time.sleep(60)
        for stage in stages:
            print(stage.pid, flush=True)
        for stage in stages:
            supervisor.wait(stage)


if __name__ == "__main__":
    main(*sys.argv[1:])
