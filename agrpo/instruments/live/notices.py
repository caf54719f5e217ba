"""What asks for attention: warnings of a run's stages, from the logs on this machine and the events in its folder."""

from __future__ import annotations

from dataclasses import dataclass
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
"""Of one log at one look; a stage that prints faster is not read whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """One warning."""

    at: datetime | None
    """UTC; None where a stage died before it said when."""
    level: str
    """`warning`, `error` or `critical`."""
    stage: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.stage}: {self.text}"


def notice_of(stage: str, line: str) -> Notice | None:
    """The warning in a line that a stage printed; None where it holds none."""
    told = read_line(line)
    if told is None or not told.alarming:
        return None
    return Notice(at=told.at, level=told.level.lower(), stage=stage, text=told.message)


class FollowedNotices:
    """The warnings of a run, each told once. Of what was there before, the end of each stage's newest log."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._logs = folder.local / "logs"
        self._read_to: dict[Path, int] = {}
        self._next_event: dict[str, int] = {}
        self._begun = False

    def update(self) -> list[Notice]:
        """Look again; the new ones, oldest first."""
        found = [*self._from_logs(), *self._from_events()]
        self._begun = True
        return sorted(found, key=lambda notice: notice.at or _LONG_AGO)

    def _from_logs(self) -> list[Notice]:
        paths = sorted(self._logs.glob("*.log"))
        newest = {_stage_of(path): path for path in paths}.values()
        found: list[Notice] = []
        for path in paths:
            size = path.stat().st_size
            if path not in self._read_to and not self._begun:
                self._read_to[path] = max(0, size - FIRST_BYTES) if path in newest else size
            begin = self._read_to.get(path, 0)
            begin = 0 if size < begin else max(begin, size - MOST_BYTES)
            if size > begin:
                found += self._from_log(path, begin)
        return found

    def _from_log(self, path: Path, begin: int) -> list[Notice]:
        with path.open("rb") as log:
            log.seek(begin)
            data = log.read()
        whole = data.rpartition(b"\n")[0]
        self._read_to[path] = begin + (len(whole) + 1 if whole else 0)
        stage, last_at, found = _stage_of(path), None, list[Notice]()
        for line in whole.decode(errors="replace").splitlines():
            notice = notice_of(stage, line)
            if notice is None and line.startswith("error: "):
                # A stage's last line, which has no time of its own.
                notice = Notice(at=last_at, level="error", stage=stage, text=line.removeprefix("error: "))
            told = read_line(line)
            last_at = told.at if told else last_at
            found += [] if notice is None else [notice]
        return found

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
