"""A further rank of the learner: joins the group that its environment names, and does what rank 0 announces.

Not a stage of the run: the learner starts its ranks itself (`ranks.py`), and all that a rank needs it is told. It does not
end when it is asked to, since the learner may have something left to do with it; it ends with the learner.
"""

from __future__ import annotations

import os
import threading

from agrpo.stages.context import StageContext
from agrpo.stages.ranks import BEAT_SECONDS


def run(context: StageContext) -> None:
    """Follow rank 0 until it says that all is done, or is gone."""
    _speak()
    from agrpo.policy.ranks.group import join
    from agrpo.policy.trainee import follow

    follow(join())


def _speak() -> None:
    """Say every second that this process lives. Nobody hears one that was started by other means."""
    descriptor = os.environ.pop("AGRPO_BEAT_FD", None)
    if descriptor is not None:
        os.set_inheritable(int(descriptor), False)
        threading.Thread(target=_beat, args=(int(descriptor),), name="beat", daemon=True).start()


def _beat(descriptor: int) -> None:
    pause = threading.Event()
    while not pause.wait(BEAT_SECONDS):
        os.write(descriptor, b".")
