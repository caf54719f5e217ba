"""What the stages said about one group: lines of their logs that name it, warn, or tell an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

MOST_LINES = 60
LONGEST_LINE = 400
"""Characters."""

_NAME = re.compile(r"(?P<stage>.+)-(?P<start>\d{8}T\d{6}Z)-[0-9a-f]+\.log(?:\.(?P<kept>\d+))?")
_TIMED = re.compile(r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) (?P<level>[A-Z]+) ")
_ALARMS = ("WARNING", "ERROR", "CRITICAL")
_MIDNIGHT = timedelta(hours=12)
"""A clock that goes back by more has passed midnight; by less, it was set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line of a stage's log."""

    stage: str
    at: datetime
    """To the second. Logs hold the time of day; the day is counted on from the start of the process."""
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLog:
    """The lines, oldest first."""

    folder: Path
    lines: list[LogLine]
    num_left_out: int
    """Later lines that were too many."""


def read_group_log(folder: Path, ticket: int, begin: datetime, end: datetime | None) -> GroupLog:
    """The lines about a group from `begin` to `end` (None: until now), from all logs in `folder`."""
    lines = sorted((line for stage in _stages(folder) for line in _told(stage, ticket, begin, end)), key=_time)
    return GroupLog(folder=folder, lines=lines[:MOST_LINES], num_left_out=max(0, len(lines) - MOST_LINES))


def _time(line: LogLine) -> datetime:
    return line.at


def _stages(folder: Path) -> Iterator[list[Path]]:
    """The files of each process, oldest first."""
    processes: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.log*")):
        if _NAME.fullmatch(path.name):
            processes.setdefault(path.name.partition(".log")[0], []).append(path)
    for files in processes.values():
        yield sorted(files, key=lambda path: -int(path.name.partition(".log.")[2] or 0))


def _told(files: list[Path], ticket: int, begin: datetime, end: datetime | None) -> Iterator[LogLine]:
    """A line without a time of its own goes with the one before it: a traceback with its error."""
    named = _NAME.fullmatch(files[0].name)
    assert named is not None, "only logs of stages are read"
    now = datetime.strptime(named["start"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).astimezone()
    about = re.compile(rf"\b(?:ticket|group)s? {ticket}\b")
    begin, taken = begin.replace(microsecond=0), False
    for text in _lines(files):
        timed = _TIMED.match(text)
        if timed:
            now = _moved(now, int(timed["hour"]), int(timed["minute"]), int(timed["second"]))
            taken = timed["level"] in _ALARMS
        if end is not None and now > end:
            return
        if now >= begin and (taken or about.search(text) or text.startswith(("error: ", "Traceback"))):
            taken = taken or not timed
            yield LogLine(stage=named["stage"], at=now.astimezone(UTC), line=text[:LONGEST_LINE])


def _lines(files: list[Path]) -> Iterator[str]:
    for path in files:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                # A progress bar redraws its line with carriage returns, and a log line may stand right behind it.
                text = line.rstrip().rpartition("\r")[2]
                if text:
                    yield text


def _moved(now: datetime, hour: int, minute: int, second: int) -> datetime:
    moved = now.replace(hour=hour, minute=minute, second=second)
    return moved + timedelta(days=1) if now - moved > _MIDNIGHT else moved
