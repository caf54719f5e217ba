"""Where a stage that stands still is: what its main thread is at, and which of the run's tools are called on threads.

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
LONGEST_SECONDS = 3.0
"""How long is listened in all."""
TOLD = 3
"""Functions that are named."""
CALLER = ("tools", "caller.py")
"""The page that calls what users wrote."""

_HEADER = re.compile(r"(?:Current thread|Thread) 0x")
_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_CUT = "..."
"""Said in place of the threads after the hundredth, the main thread among them."""
_DUMPED = re.compile(f'{_HEADER.pattern}|  File "|  \\.\\.\\.$|\\.\\.\\.$')


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
    """Ask a stage that is about to be ended. None: it does not answer. What else it prints meanwhile holds up nobody."""
    lines = stage.output.overhear()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(stage.pid, signal.SIGUSR2)
    began = time.monotonic()
    deadline, next_line, seen = began + LONGEST_SECONDS, began + ANSWER_SECONDS, 0
    while (now := time.monotonic()) < min(deadline, next_line):
        new = lines[seen:]
        seen += len(new)
        if any(_DUMPED.match(line) for line in new):
            next_line = now + PAUSE_SECONDS
        time.sleep(PAUSE_SECONDS / 10)
    return told(lines, whole=now < deadline)


def told(lines: Sequence[str], *, whole: bool = True) -> str | None:
    """What the fault handler's words mean, in a sentence. None: it has said nothing.

    The main thread's are the last, if it came to an end (`whole`). Where that thread does not wait in its loop, it may be
    what stands still, and calls on threads may wait for it alone: it is named first.
    """
    stacks = stacks_of(lines)
    if not stacks:
        return None
    known = whole and [line for line in lines if _DUMPED.match(line)][-1] != _CUT
    main, others = (stacks[-1], stacks[:-1]) if known else ([], stacks)
    words = [f"its main thread is in {_place_of(main)}"] if main and not _idles(main[0]) else []
    calls = Counter(call for call in map(_call_of, others) if call is not None)
    if calls:
        named = ", ".join(f"{call}{f' {count} times' if count > 1 else ''}" for call, count in calls.most_common(TOLD))
        rest = f" and {len(calls) - TOLD} others" if len(calls) > TOLD else ""
        words.append(f"called by the policy and not come back: {named}{rest}")
    if not known:
        words.append(f"its main thread is not known, for not all stacks were told ({len(stacks)} were)")
    if not words and main:
        words.append(f"its main thread is in {main[0]}")
    return "; ".join(words) or None


def stacks_of(lines: Sequence[str]) -> list[list[Frame]]:
    """The stack of each thread, innermost frame first."""
    stacks: list[list[Frame]] = []
    for line in lines:
        if _HEADER.match(line):
            stacks.append([])
        elif stacks and (found := _FRAME.fullmatch(line)):
            stacks[-1].append(Frame(PurePath(found[1]), int(found[2]), found[3]))
    return stacks


def _place_of(stack: Sequence[Frame]) -> str:
    """Where a thread is: the function that the policy has called in it, or else its innermost frame."""
    call = _call_of(stack)
    return str(stack[0]) if call is None else f"{call}, called by the policy"


def _idles(frame: Frame) -> bool:
    """Whether a loop waits there for something to happen."""
    return frame.path.name == "selectors.py" or _waits(frame)


def _call_of(stack: Sequence[Frame]) -> Frame | None:
    """The user's function that `Caller` has called in this thread: the frame inside of it."""
    places = [place for place, frame in enumerate(stack) if frame.path.parts[-2:] == CALLER]
    return stack[places[0] - 1] if places and places[0] > 0 and not _waits(stack[places[0] - 1]) else None


def _waits(frame: Frame) -> bool:
    """Whether it is asyncio's own, in which a coroutine waits."""
    return "asyncio" in frame.path.parts
