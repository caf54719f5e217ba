"""How a stage tells its supervisor why it failed: one JSON object through a pipe, written as the last act."""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from dataclasses import asdict, dataclass
from typing import IO, Any

LONGEST_MESSAGE = 4_000
LONGEST_TRACEBACK = 6_000
"""Characters, of at most 6 bytes each: a report fits into an empty pipe (64 KiB), so that writing it waits for no reader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """An exception that ended a stage."""

    error_type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """The end of a long traceback is kept: it is the part that names the cause."""
        return cls(
            error_type=type(error).__name__,
            message=str(error)[:LONGEST_MESSAGE],
            traceback="".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:],
        )

    def __str__(self) -> str:
        """One line, whatever the message holds."""
        folded = " ".join(self.message.split())
        return f"{self.error_type}: {folded}" if folded else self.error_type


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
        return ErrorReport(**{name: str(fields[name]) for name in ErrorReport.__slots__})
    except (ValueError, KeyError, TypeError):
        return None
