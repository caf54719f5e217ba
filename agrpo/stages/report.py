"""How a stage tells its supervisor why it failed: one JSON object through a pipe, written as the last act."""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from dataclasses import asdict, dataclass
from typing import IO, Any

from agrpo.errors import (
    AgrpoError,
    DeadlineExceeded,
    EngineError,
    EngineLost,
    LearnerRankLost,
    PromptRefused,
    StoreError,
    StoreFull,
    StoreLostWrites,
    StoreNotExclusive,
    StoreReadOnly,
)

LONGEST_MESSAGE = 4_000
LONGEST_TRACEBACK = 6_000
"""Characters, of at most 6 bytes each: a report fits into an empty pipe (64 KiB), so that writing it waits for no reader."""

PASSING = (StoreError, EngineError, DeadlineExceeded)
"""Of ours, what may not come again: a store or an engine is out for a while or is begun anew, and what was waited for may
be delivered by a stage that was itself started again."""
LASTING = (StoreFull, StoreReadOnly, StoreNotExclusive, StoreLostWrites, PromptRefused, EngineLost)
"""Of those, what would come again: it takes a person."""
DEVICE_ERRORS = frozenset({"OutOfMemoryError", "AcceleratorError"})
"""Of torch, by name: another process may have taken the memory, and a device's error lasts as long as its process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """An exception that ended a stage."""

    error_type: str
    message: str
    traceback: str
    passing: bool = False
    """Whether it may not come again when the stage is started again."""

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """The end of a long traceback is kept: it is the part that names the cause."""
        return cls(
            error_type=type(error).__name__,
            message=str(error)[:LONGEST_MESSAGE],
            traceback="".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:],
            passing=may_pass(error),
        )

    def __str__(self) -> str:
        """One line, whatever the message holds."""
        folded = " ".join(self.message.split())
        return f"{self.error_type}: {folded}" if folded else self.error_type


def may_pass(error: BaseException) -> bool:
    """Whether a stage that met this error may not meet it again.

    What was raised on purpose about settings, model, rewards, history or another learner would be met again, as would a
    slip of the program. The world outside changes: stores, engines, connections, memory.
    """
    if isinstance(error, LearnerRankLost):
        return error.passing
    if isinstance(error, AgrpoError):
        return isinstance(error, PASSING) and not isinstance(error, LASTING)
    named = {cls.__name__ for cls in type(error).__mro__}
    return isinstance(error, OSError | MemoryError) or not DEVICE_ERRORS.isdisjoint(named)


def send(report: ErrorReport, descriptor: int) -> None:
    """Write `report` and close the pipe. A supervisor that is gone hears nothing, and that is no error."""
    data = json.dumps(asdict(report), ensure_ascii=False).encode(errors="backslashreplace")
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb", buffering=0) as pipe:
        pipe.write(data)


def receive(pipe: IO[bytes]) -> ErrorReport | None:
    """Read what an ended stage has written and close the pipe. None: it ended without a word, or amid one."""
    os.set_blocking(pipe.fileno(), False)
    with pipe:
        data = b"".join(iter(lambda: pipe.read(65536) or b"", b""))
    try:
        fields: dict[str, Any] = json.loads(data)
        told = {name: str(fields[name]) for name in ("error_type", "message", "traceback")}
        return ErrorReport(**told, passing=fields["passing"] is True)
    except (ValueError, KeyError, TypeError):
        return None
