"""The process of a reward that stays loaded: `python -m agrpo.rewards.sandbox.resident PIPE PARENT`.

It loads once and judges one call after the other itself, since what such a reward holds (a model on a GPU) does not survive
a fork. Nothing here watches a call: the scorer kills the process when a call's time is over, and starts another. It dies
with the scorer, in the middle of a call too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import cast

from agrpo.rewards import Resident, Reward, load_named
from agrpo.rewards.sandbox.beginning import PIECE_BYTES, Begun, attempt, begin
from agrpo.rewards.sandbox.child import answer_to, attempted
from agrpo.rewards.sandbox.frames import SETUP, Loaded, Setup, frame, to_bytes

LOOK_SECONDS = 1.0


def main() -> None:
    """Load the reward and serve."""
    begun = begin()
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent", daemon=True).start()
    judge = attempt(begun.setup.name, lambda: _load(begun.setup))
    refused = isinstance(judge, Loaded)
    told = judge if refused else Loaded(whole_group=cast("Reward", judge).whole_group)
    sys.stdout.flush()
    begun.channel.sendall(frame(SETUP, to_bytes(told)))
    if not refused:
        _serve(begun, cast("Reward", judge))
    os._exit(0)  # threads of a library would keep it alive


def _load(setup: Setup) -> Reward:
    resident = load_named(setup.name, setup.settings)
    assert isinstance(resident, Resident), f"{setup.name} was a reward that stays in the process that started this one"
    judge = resident.load()
    if not resident.on_gpu:  # a driver maps address space as it likes
        setup.limits.bound_memory()
    return judge


def _serve(begun: Begun, judge: Reward) -> None:
    """Until the scorer closes the pipe, or until a call has raised what nobody foresaw: such a process is not asked again."""
    try:
        while data := begun.channel.recv(PIECE_BYTES):
            for number, body in begun.frames.feed(data):
                if not body:
                    continue  # the scorer called one off, and has killed this process if it was in the middle of it
                answer = attempted(lambda body=body: answer_to(judge, body), begun.setup.limits)
                begun.channel.sendall(frame(number, to_bytes(answer)))
                if answer.unforeseen:
                    return
    except ConnectionError:
        return


def _end_with(parent: int) -> None:
    """Where the kernel does not end this process with its parent, this thread does."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
