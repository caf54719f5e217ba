"""Telling a run as it goes on where no terminal shows it: one plain line per step and per warning."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from agrpo.instruments.live.looking import Look, Onlooker
from agrpo.instruments.progress import max_steps
from agrpo.metrics.line import progress_line
from agrpo.queue.run_folder import RunFolder

LOOK_SECONDS = 1.0


def tell(folder: RunFolder, say: Callable[[str], None]) -> Look:
    """Say the steps that are done and every one that comes, until the run has ended. Returns the last look."""
    onlooker, pause, last = Onlooker(folder), threading.Event(), max_steps(folder.document())
    while True:
        look = onlooker.look(time.time())
        for point in look.new_points:
            say(progress_line(point.step, point.metrics, last))
        for notice in look.new_notices:
            say(str(notice))
        if look.ended:
            return look
        pause.wait(LOOK_SECONDS)
