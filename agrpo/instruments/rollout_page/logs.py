"""What the stages said about one group: lines of their logs that name it, warn, or tell an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agrpo.log_line import read_line

MOST_LINES = 60
LONGEST_LINE = 400
"""Characters."""

_NAME = re.compile(r"(?P<stage>.+)-(?P<start>\d{8}T\d{6}Z)-[0-9a-f]+\.log(?:\.(?P<kept>\d+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLine:
    """One line of a stage's log."""

    stage: str
    at: datetime
    """UTC, to the second."""
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLog:
    """The lines, oldest first."""

    folder: Path
    lines: list[StageLine]
    num_left_out: int
    """Later lines that were too many."""


def read_group_log(folder: Path, ticket: int, begin: datetime, end: datetime | None) -> GroupLog:
    """The lines about a group from `begin` to `end` (None: until now), from all logs in `folder`."""
    lines = sorted((line for stage in _stages(folder) for line in _told(stage, ticket, begin, end)), key=_time)
    return GroupLog(folder=folder, lines=lines[:MOST_LINES], num_left_out=max(0, len(lines) - MOST_LINES))


def _time(line: StageLine) -> datetime:
    return line.at


def _stages(folder: Path) -> Iterator[list[Path]]:
    """The files of each process, oldest first."""
    processes: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.log*")):
        if _NAME.fullmatch(path.name):
            processes.setdefault(path.name.partition(".log")[0], []).append(path)
    for files in processes.values():
        yield sorted(files, key=lambda path: -int(path.name.partition(".log.")[2] or 0))


def _told(files: list[Path], ticket: int, begin: datetime, end: datetime | None) -> Iterator[StageLine]:
    """A line without a time of its own goes with the one before it: a traceback with its error."""
    named = _NAME.fullmatch(files[0].name)
    assert named is not None, "only logs of stages are read"
    now = datetime.strptime(named["start"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    about = re.compile(rf"\b(?:ticket|group)s? {ticket}\b")
    begin, taken = begin.replace(microsecond=0), False
    for text in _lines(files):
        timed = read_line(text)
        if timed is not None:
            now, taken = timed.at, timed.alarming
        if end is not None and now > end:
            return
        if now >= begin and (taken or about.search(text) or text.startswith(("error: ", "Traceback"))):
            taken = taken or timed is None
            yield StageLine(stage=named["stage"], at=now, line=text[:LONGEST_LINE])


def _lines(files: list[Path]) -> Iterator[str]:
    for path in files:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                # A progress bar redraws its line with carriage returns, and a log line may stand right behind it.
                text = line.rstrip().rpartition("\r")[2]
                if text:
                    yield text
