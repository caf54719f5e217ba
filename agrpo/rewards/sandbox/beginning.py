"""What a reward's process does first, of whichever kind: hear what it shall load, become like the scorer, load it."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from agrpo.errors import AgrpoError
from agrpo.rewards.sandbox import processes
from agrpo.rewards.sandbox.frames import Frames, Loaded, Setup
from agrpo.rewards.sandbox.verdicts import reason_of

PIECE_BYTES = 2**18

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A process that knows what it is for."""

    channel: socket.socket
    """To the scorer."""
    frames: Frames
    setup: Setup


def begin() -> Begun:
    """Take the pipe and the parent from the command line. The process dies with the parent; it ends if nothing is asked."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    processes.die_with(int(sys.argv[2]))  # while it imports it cannot watch the pipe
    frames = Frames()
    setup = _setup(channel, frames)
    sys.path[:] = setup.sys_path
    os.environ.pop("PYTHONPATH", None)
    if setup.python_path is not None:
        os.environ["PYTHONPATH"] = setup.python_path
    return Begun(channel=channel, frames=frames, setup=setup)


def attempt(name: str, load: Callable[[], T]) -> T | Loaded:
    """What `load` gives, or what to tell the scorer in its place. `name`: of the reward."""
    try:
        return load()
    except AgrpoError as error:
        return Loaded(problem=str(error))
    except (Exception, SystemExit) as error:
        return Loaded(problem=f'reward "{name}" cannot be loaded: {reason_of(error)}')


def _setup(channel: socket.socket, frames: Frames) -> Setup:
    while data := channel.recv(PIECE_BYTES):
        for _, body in frames.feed(data):
            return pickle.loads(body)
    sys.exit(0)
