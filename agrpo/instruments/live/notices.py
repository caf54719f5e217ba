"""What asks for attention: warnings of a run's stages, from the logs on this machine and the events in its folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from agrpo.log_line import read_line
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Event

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
FIRST_BYTES = 64 * 1024
"""How much of the end of a log is read when watching begins."""
FIRST_EVENTS = 20
"""How many of the newest events of a stream are read when watching begins."""
MOST_BYTES = 4 * 2**20
"""Of one file at one look; a stage that prints faster is not read whole."""
KEPT_NOTICES = 20
KEPT_KINDS = 1000
"""Of warnings, which are counted; a kind that was not heard of for so many others is forgotten."""

_VARIABLE = re.compile(r"\S*\d\S*")
"""Words by which warnings of one kind differ: numbers, ids, paths with a time in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """One warning."""

    at: datetime | None
    """UTC; None where a stage died before it said when."""
    level: str
    """`warning`, `error` or `critical`."""
    stage: str
    text: str
    times: int = 1
    """How many of its kind there were, up to this one."""

    def __str__(self) -> str:
        return f"{self.level}: {self.stage}: {self.text}"

    @property
    def kind(self) -> str:
        """The same for warnings that differ in numbers and ids only."""
        return f"{self.level}: {self.stage}: {_VARIABLE.sub('#', self.text)}"


def notice_of(stage: str, line: str) -> Notice | None:
    """The warning in a line that a stage printed; None where it holds none."""
    told = read_line(line)
    if told is None or not told.alarming:
        return None
    return Notice(at=told.at, level=told.level.lower(), stage=stage, text=told.message)


class FoldedNotices:
    """The newest warning of each kind, with how often it came."""

    def __init__(self) -> None:
        self._newest: dict[str, Notice] = {}

    def add(self, notices: Iterable[Notice]) -> None:
        """Later ones come later."""
        for notice in notices:
            former = self._newest.pop(notice.kind, None)
            self._newest[notice.kind] = replace(notice, times=notice.times + (former.times if former else 0))
            if len(self._newest) > KEPT_KINDS:
                self._newest.pop(next(iter(self._newest)))

    def newest(self) -> list[Notice]:
        """At most `KEPT_NOTICES`, oldest first."""
        return list(self._newest.values())[-KEPT_NOTICES:]


@dataclass(kw_only=True, slots=True)
class _Place:
    """How far a log was read."""

    inode: int
    """Of the file that was read: once it is full, it goes on as `NAME.1`, and another one begins under its name."""
    offset: int
    last_at: datetime | None = None
    """When the last line that has a time was written."""


class FollowedNotices:
    """The warnings of a run, each told once. Of what was there before, the end of each stage's newest log."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._logs = folder.local / "logs"
        self._places: dict[Path, _Place] = {}
        self._next_event: dict[str, int] = {}
        self._begun = False

    def update(self) -> list[Notice]:
        """Look again; the new ones, oldest first."""
        found = [*self._from_logs(), *self._from_events()]
        self._begun = True
        return sorted(found, key=lambda notice: notice.at or _LONG_AGO)

    def _from_logs(self) -> Iterator[Notice]:
        paths = sorted(self._logs.glob("*.log"))
        newest = {_stage_of(path): path for path in paths}.values()
        for path in paths:
            # In the middle of a rotation there is none of that name: the next look finds it.
            with suppress(FileNotFoundError):
                yield from self._from_log(path, skip=not self._begun, end=path in newest)

    def _from_log(self, path: Path, *, skip: bool, end: bool) -> Iterator[Notice]:
        """`skip`: pass over what was there before, but for the `end` of the file."""
        status = path.stat()
        place = self._places.get(path)
        if place is None:
            offset = 0 if not skip else max(0, status.st_size - FIRST_BYTES) if end else status.st_size
            place = self._places[path] = _Place(inode=status.st_ino, offset=offset)
        elif place.inode != status.st_ino:
            yield from self._rest(path, place)
            place.inode, place.offset = status.st_ino, 0
        yield from _read_on(path, place)

    @staticmethod
    def _rest(path: Path, place: _Place) -> Iterator[Notice]:
        """What came after the place in a full file, and in those that were filled since. What is thrown away is lost."""
        kept = sorted(path.parent.glob(f"{path.name}.[0-9]"), key=lambda older: int(older.suffix[1:]), reverse=True)
        inodes = [older.stat().st_ino for older in kept]
        if place.inode not in inodes:
            return
        for older, inode in list(zip(kept, inodes, strict=True))[inodes.index(place.inode) :]:
            if inode != place.inode:
                place.inode, place.offset = inode, 0
            yield from _read_on(older, place)

    def _from_events(self) -> list[Notice]:
        found: list[Notice] = []
        for stream in self._folder.event_streams():
            if stream not in self._next_event:
                numbers = [] if self._begun else self._folder.event_numbers(stream)
                self._next_event[stream] = max(0, len(numbers) - FIRST_EVENTS)
            while (event := self._folder.event(stream, self._next_event[stream])) is not None:
                self._next_event[stream] += 1
                notice = _notice_of_event(event)
                found += [] if notice is None else [notice]
        return found


def _read_on(path: Path, place: _Place) -> Iterator[Notice]:
    """The warnings from the place on, which is moved behind the last whole line."""
    with path.open("rb") as log:
        status = os.fstat(log.fileno())
        if status.st_ino != place.inode:
            raise FileNotFoundError(f"{path} was rotated since it was looked for")
        begin = 0 if status.st_size < place.offset else max(place.offset, status.st_size - MOST_BYTES)
        log.seek(begin)
        whole = log.read(MOST_BYTES).rpartition(b"\n")[0]
    place.offset = begin + (len(whole) + 1 if whole else 0)
    for line in whole.decode(errors="replace").splitlines():
        notice = notice_of(_stage_of(path), line)
        if notice is None and line.startswith("error: "):
            # A stage's last line, which has no time of its own.
            text = line.removeprefix("error: ")
            notice = Notice(at=place.last_at, level="error", stage=_stage_of(path), text=text)
        told = read_line(line)
        place.last_at = told.at if told else place.last_at
        if notice is not None:
            yield notice


def _notice_of_event(event: Event) -> Notice | None:
    """What the supervisor says of a stage; what stages say themselves is in their logs."""
    if event.kind not in ("stage_restarted", "stage_failed"):
        return None
    failed = event.kind == "stage_failed"
    return Notice(
        at=datetime.fromtimestamp(event.at, UTC),
        level="error" if failed else "warning",
        stage=str(event.payload.get("stage", event.stream)),
        text=f"{'failed' if failed else 'was started again'}: {event.payload.get('reason', 'no reason given')}",
    )


def _stage_of(path: Path) -> str:
    """Of the log of an incarnation, `{stage}-{time}-{hex}.log`."""
    return path.name.rsplit("-", 2)[0]
