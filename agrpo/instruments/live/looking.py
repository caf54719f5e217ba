"""Looking at a run that goes on: everything the live view shows, read from the run's folder."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agrpo.instruments.diagnosis import Finding, diagnose
from agrpo.instruments.history import FollowedHistory, StepPoint
from agrpo.instruments.live.notices import FollowedNotices, Notice
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint

STAGES = ("generator", "scorer", "learner", "recorder")
"""The stages of a run, in the order of a group's walk."""
SILENT_SECONDS = 10.0
"""A stage that has said nothing for longer is said to be silent. The recorder's own pause comes on top."""
ENDED_SECONDS = 3.0
"""A finished run of which no stage has spoken for so long has ended."""
STOPPED_SECONDS = 60.0
"""An unfinished run of which no stage has spoken for so long is not being worked on."""
KEPT_NOTICES = 20


class State(StrEnum):
    """What a run is doing."""

    STARTING = "starting"
    TRAINING = "training"
    SILENT = "no stage speaks"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageWord:
    """The last word of one stage."""

    name: str
    spoken: bool
    """False: it has not said anything yet; then nothing else is known."""
    waiting_for: str | None = None
    """None: it works."""
    waited_seconds: float = 0.0
    """Up to now."""
    quiet_seconds: float = 0.0
    """Since its last word."""
    silent: bool = False
    """It has been quiet for longer than a stage that lives should be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """Where the groups are that are begun and not trained yet."""

    generating: int
    unscored: int
    scored: int
    """Waiting for training, or in the step that is at work."""
    most: int | None
    """How many the token allowance leaves room for in all; None in lockstep or before it is told."""

    @property
    def ahead(self) -> int:
        return self.generating + self.unscored + self.scored


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a run's folder said at one moment."""

    at: float
    """Unix seconds."""
    document: Mapping[str, Any]
    url: str
    state: State
    ended: bool
    """Finished, or left alone for so long that nothing more is to be expected."""
    points: Sequence[StepPoint]
    """The history, by step."""
    new_points: Sequence[StepPoint]
    """Those that the look before did not see."""
    stages: Sequence[StageWord]
    pipeline: Pipeline
    notices: Sequence[Notice]
    """The newest warnings, oldest first."""
    new_notices: Sequence[Notice]
    findings: Sequence[Finding]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The run's settings tree."""
        return self.document["settings"]["tree"]


class Onlooker:
    """Looks at one run again and again. Each done record is read once; everything else costs listings."""

    def __init__(self, folder: RunFolder, *, since: float = 0.0) -> None:
        """`since`: what stages said before (Unix seconds) is of an earlier try and does not count."""
        self._folder = folder
        self._since = since
        self._document = folder.document()
        self._history = FollowedHistory(folder)
        self._followed = FollowedNotices(folder)
        self._notices: deque[Notice] = deque(maxlen=KEPT_NOTICES)
        self._findings: Sequence[Finding] = ()
        self._heard_at: float | None = None

    def look(self, now: float) -> Look:
        """The run as it is `now` (Unix seconds, of the clock that the stages use)."""
        new_points = self._history.update()
        points = self._history.points
        if new_points:
            self._findings = diagnose(points, self._document["settings"]["tree"])
        new_notices = self._followed.update()
        self._notices.extend(new_notices)
        hint, stages = self._folder.hint(), self._stages(now)
        state = _state(hint, stages, points)
        return Look(
            at=now,
            document=self._document,
            url=self._folder.url,
            state=state,
            ended=self._has_ended(state, stages, now),
            points=points,
            new_points=new_points,
            stages=stages,
            pipeline=self._pipeline(hint, points),
            notices=list(self._notices),
            new_notices=new_notices,
            findings=self._findings,
        )

    def _stages(self, now: float) -> list[StageWord]:
        beats = {beat["stage"]: beat for beat in self._folder.beats() if beat["at"] >= self._since}
        names = [*STAGES, *sorted(beats.keys() - set(STAGES))]
        return [self._word(name, beats.get(name), now) for name in names]

    def _word(self, name: str, beat: Mapping[str, Any] | None, now: float) -> StageWord:
        if beat is None:
            return StageWord(name=name, spoken=False)
        quiet = max(0.0, now - beat["at"])
        pause = self._document["settings"]["tree"]["recorder"]["every_seconds"] if name == "recorder" else 0.0
        return StageWord(
            name=name,
            spoken=True,
            waiting_for=beat["waiting_for"],
            waited_seconds=beat["waited_seconds"] + quiet,
            quiet_seconds=quiet,
            silent=quiet > SILENT_SECONDS + pause,
        )

    def _has_ended(self, state: State, stages: Sequence[StageWord], now: float) -> bool:
        self._heard_at = now if self._heard_at is None else self._heard_at
        quiet = min((stage.quiet_seconds for stage in stages if stage.spoken), default=now - self._heard_at)
        return quiet > (ENDED_SECONDS if state is State.FINISHED else STOPPED_SECONDS)

    def _pipeline(self, hint: Hint | None, points: Sequence[StepPoint]) -> Pipeline:
        """Below the floor every ticket is consumed, so that only what lies above it is listed."""
        floor = hint.floor if hint is not None else 0
        consumed = points[-1].num_prompts if points else 0
        scored = floor + len(self._folder.scored.numbers(floor))
        generated = floor + len(self._folder.groups.numbers(floor))
        begun = floor + len(self._folder.claims.tickets(floor))
        limit = None if hint is None or hint.limit_ticket is None else hint.limit_ticket
        return Pipeline(
            generating=max(0, begun - generated),
            unscored=max(0, generated - scored),
            scored=max(0, scored - consumed),
            most=None if limit is None else max(0, limit - consumed),
        )


def _state(hint: Hint | None, stages: Sequence[StageWord], points: Sequence[StepPoint]) -> State:
    if hint is not None and hint.finished:
        return State.FINISHED
    spoken = [stage for stage in stages if stage.spoken]
    if spoken and all(stage.silent for stage in spoken):
        return State.SILENT
    return State.TRAINING if points else State.STARTING
