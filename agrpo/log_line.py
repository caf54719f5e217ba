"""A stage's log line: how it is written, and how it is read again. `2026-11-29T18:52:17Z LEVEL logger message`."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

ALARMS = ("WARNING", "ERROR", "CRITICAL")
"""Levels that ask for attention."""

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([A-Z]+) (\S+) (.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line that a logger of a stage wrote."""

    at: datetime
    """UTC, to the second."""
    level: str
    speaker: str
    """Name of the logger."""
    message: str

    @property
    def alarming(self) -> bool:
        return self.level in ALARMS


def write_logs_to(stream: TextIO) -> None:
    """Have this process' loggers write lines of this form."""
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s", _TIME)
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def read_line(text: str) -> LogLine | None:
    """None for what no logger wrote, such as a traceback's lines."""
    found = _LINE.fullmatch(text)
    if found is None:
        return None
    at = datetime.strptime(found[1], _TIME).replace(tzinfo=UTC)
    return LogLine(at=at, level=found[2], speaker=found[3], message=found[4])
