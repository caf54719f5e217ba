"""A learner that is asked to end: what it leaves behind for the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from agrpo.errors import Stopped
from agrpo.queue.run_folder import RunFolder
from agrpo.stages import learner
from agrpo.stages.context import StageContext, new_incarnation
from tests.protocol.learners import fill, learn
from tests.protocol.stopping import Killed, Place, Side, Stores, Writer

Begin = Callable[..., RunFolder]


@pytest.mark.parametrize(("grace", "left"), [(3600, "00000002"), (1e-6, "00000000")])
def test_a_resumed_learner_leaves_a_checkpoint_where_there_is_time(
    begin_in_memory: Begin, monkeypatch: pytest.MonkeyPatch, grace: float, left: str
):
    run = {"stop": {"max_steps": 6, "stall_seconds": 15, "grace_seconds": grace}, "checkpoint": {"every_seconds": 1e6}}
    folder = fill(begin_in_memory(**run))
    finish = learner._Learner._finish
    for _ in range(2):
        stop = threading.Event()

        def finish_and_ask(self, plan, material, stop=stop) -> None:
            finish(self, plan, material)
            stop.set()

        monkeypatch.setattr(learner._Learner, "_finish", finish_and_ask)
        with pytest.raises(Stopped, match="asked to stop after step"):
            learner.run(
                StageContext(run_url=folder.url, stage="learner", incarnation=new_incarnation("learner"), stop=stop)
            )
    assert max(folder.filesystem.list("checkpoints")).startswith(left)


def test_a_learner_that_replays_hears_that_it_shall_end(begin_in_memory: Begin, stores: Stores):
    run = {"stop": {"max_steps": 3, "stall_seconds": 15}, "checkpoint": {"every_seconds": 1e6}}
    folder = fill(begin_in_memory(**run))
    with pytest.raises(Killed):
        learn(folder, stores, Writer(killed_at=Place("put", "steps/000000/00000003.plan.json", Side.BEFORE)))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped, match="asked to stop after replaying step 1"):
        learner.run(
            StageContext(run_url=folder.url, stage="learner", incarnation=new_incarnation("learner"), stop=stop)
        )
