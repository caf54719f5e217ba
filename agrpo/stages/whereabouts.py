"""Where a stage that stands still is: which of the run's tools it is in, or what its main thread is at.

Python's fault handler prints the stack of every thread from within a signal handler, so that it needs no interpreter that
goes on: it answers while a call in C holds it. What a stage prints, its supervisor hears.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agrpo.stages.stage_process import StageProcess

ANSWER_SECONDS = 1.0
"""How long a stage may take to print its first line. One that is stopped prints none."""
PAUSE_SECONDS = 0.2
"""Without a further line, the answer is whole."""
TOLD = 3
"""Functions that are named."""
CALLER = ("tools", "caller.py")
"""The page that calls what users wrote."""

_HEADER = re.compile(r"(?:Current thread|Thread) 0x")
_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    path: PurePath
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.path.name}:{self.line})"


def tell_when_asked() -> None:
    """In a stage: from now on the signal makes it print where all its threads are."""
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR2, all_threads=True)


def asked(stage: StageProcess) -> str | None:
    """Ask a stage that is about to be ended. None: it does not answer."""
    lines = stage.output.overhear()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(stage.pid, signal.SIGUSR2)
    deadline, heard, heard_at = time.monotonic() + ANSWER_SECONDS, 0, 0.0
    while time.monotonic() < (heard_at + PAUSE_SECONDS if heard else deadline):
        if len(lines) > heard:
            heard, heard_at = len(lines), time.monotonic()
        time.sleep(PAUSE_SECONDS / 10)
    return told(lines)


def told(lines: Sequence[str]) -> str | None:
    """What the fault handler's words mean, in a sentence. The main thread's are the last."""
    stacks = stacks_of(lines)
    calls = Counter(call for call in map(_call_of, stacks) if call is not None)
    if calls:
        named = ", ".join(f"{call}{f' {count} times' if count > 1 else ''}" for call, count in calls.most_common(TOLD))
        rest = f" and {len(calls) - TOLD} others" if len(calls) > TOLD else ""
        return f"called by the policy and not come back: {named}{rest}"
    return f"its main thread is in {stacks[-1][0]}" if stacks and stacks[-1] else None


def stacks_of(lines: Sequence[str]) -> list[list[Frame]]:
    """The stack of each thread, innermost frame first."""
    stacks: list[list[Frame]] = []
    for line in lines:
        if _HEADER.match(line):
            stacks.append([])
        elif stacks and (found := _FRAME.fullmatch(line)):
            stacks[-1].append(Frame(PurePath(found[1]), int(found[2]), found[3]))
    return stacks


def _call_of(stack: Sequence[Frame]) -> Frame | None:
    """The user's function that `Caller` has called in this thread: the frame inside of it."""
    places = [place for place, frame in enumerate(stack) if frame.path.parts[-2:] == CALLER]
    return stack[places[0] - 1] if places and places[0] > 0 and not _waits(stack[places[0] - 1]) else None


def _waits(frame: Frame) -> bool:
    """Whether it is asyncio's own, in which a coroutine waits."""
    return "asyncio" in frame.path.parts
