"""Looking at a run that goes on: everything the live view shows, read from the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from agrpo.instruments.diagnosis import Finding, diagnose
from agrpo.instruments.history import FollowedHistory, StepPoint
from agrpo.instruments.live.notices import FoldedNotices, FollowedNotices, Notice
from agrpo.instruments.live.waiting import FollowedWaiting
from agrpo.instruments.progress import RECENT_STEPS, late_seconds
from agrpo.queue.run_folder import RunFolder
from agrpo.records.pace import Standing
from agrpo.records.progress import Attempt, Hint

STAGES = ("generator", "scorer", "learner", "recorder")
"""The stages of a run, in the order of a group's walk."""
SILENT_SECONDS = 10.0
"""A stage that has said nothing for longer is said to be silent, unless it may well be at work without a word."""
RECORDER_SILENT_SECONDS = 45.0
"""It rests for up to 10 s between two passes and for up to 30 s while its database is locked."""
LEARNER_SILENT_STEPS = 3.0
"""The learner speaks between steps only: it is silent after so many times its longest step of late, without the waiting."""
FIRST_STEP_SILENT_SECONDS = 120.0
"""Before an attempt's first step the learner loads the model and warms up."""
ENDED_SECONDS = 3.0
"""A finished run of which no stage has spoken for so long has ended."""
STOPPED_SECONDS = 60.0
"""An unfinished run of which no stage has spoken for so long is not being worked on."""
PATIENCE_SECONDS = 45.0
"""How long an unfinished run is watched at least: one that is resumed says nothing while Prefect's server starts."""
TOO_FEW_STEPS = "agrpo/too-few-steps"
"""The rule that is nothing new of a run without a step."""


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
    standing: Standing | None = None
    """How a generator stands to its limits; other stages have none."""


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
    attempt: int | None
    """The learner's incarnation at work; None before it has begun."""
    moved_at: float
    """Unix seconds: when the newest step was done, or that attempt began, or watching it, whatever came last."""
    new_points: Sequence[StepPoint]
    """Those that the look before did not see."""
    stages: Sequence[StageWord]
    pipeline: Pipeline
    notices: Sequence[Notice]
    """The newest warning of each kind, oldest first."""
    new_notices: Sequence[Notice]
    findings: Sequence[Finding]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The run's settings tree."""
        return self.document["settings"]["tree"]

    @property
    def idle_seconds(self) -> float:
        """Since the newest step was done."""
        return max(0.0, self.at - self.moved_at)

    @property
    def late(self) -> bool:
        """The step at work takes longer than it should."""
        at_work = not self.ended and self.state is not State.FINISHED
        return at_work and self.idle_seconds > late_seconds(self.points, attempt=self.attempt)


class Onlooker:
    """Looks at one run again and again. Each done record is read once; everything else costs listings."""

    def __init__(self, folder: RunFolder, *, since: float = 0.0) -> None:
        """`since`: what stages said before (Unix seconds) is of an earlier try and does not count."""
        self._folder = folder
        self._since = since
        self._document = folder.document()
        self._history = FollowedHistory(folder)
        self._followed = FollowedNotices(folder)
        self._notices = FoldedNotices()
        self._waiting = FollowedWaiting(folder, self._document["settings"]["tree"])
        self._findings: Sequence[Finding] = ()
        self._attempt: Attempt | None = None
        self._began_at: float | None = None

    def look(self, now: float) -> Look:
        """The run as it is `now` (Unix seconds, of the clock that the stages use)."""
        new_points = self._history.update()
        points = self._history.points
        new_notices = self._followed.update()
        self._notices.add(new_notices)
        self._began_at = now if self._began_at is None else self._began_at
        self._find_attempt()
        hint, stages = self._folder.hint(), self._stages(points, now)
        state = _state(hint, stages, points)
        look = Look(
            at=now,
            document=self._document,
            url=self._folder.url,
            state=state,
            ended=self._has_ended(state, stages, now),
            points=points,
            attempt=self._attempt_number,
            moved_at=self._moved_at(points),
            new_points=new_points,
            stages=stages,
            pipeline=self._pipeline(hint, points),
            notices=self._notices.newest(),
            new_notices=new_notices,
            findings=[],
        )
        self._diagnose(look, hint)
        return replace(look, findings=self._findings)

    def _diagnose(self, look: Look, hint: Hint | None) -> None:
        """Where steps come, of every new one; where none does, of the groups that wait for it."""
        if look.late or not look.points:
            waiting = self._waiting.update(hint.floor if hint is not None else 0)
            found = diagnose(look.points, look.settings, waiting=waiting)
            self._findings = [finding for finding in found if look.points or finding.rule != TOO_FEW_STEPS]
        elif look.new_points:
            self._findings = diagnose(look.points, look.settings)

    def _find_attempt(self) -> None:
        newest = max(self._folder.attempts(), default=None)
        if newest is not None and (self._attempt is None or self._attempt.attempt != newest):
            self._attempt = self._folder.attempt(newest)

    @property
    def _attempt_number(self) -> int | None:
        """None where the newest is of an earlier try."""
        return None if self._attempt is None or self._attempt.started_at < self._since else self._attempt.attempt

    def _moved_at(self, points: Sequence[StepPoint]) -> float:
        moments = [self._since, *(point.finished_at for point in points[-1:])]
        moments += [self._attempt.started_at] if self._attempt else []
        return max(moments) or self._began_at or 0.0

    def _stages(self, points: Sequence[StepPoint], now: float) -> list[StageWord]:
        beats = {beat["stage"]: beat for beat in self._folder.beats() if beat["at"] >= self._since}
        expected = [*servers_of(self._document["settings"]["tree"]), *STAGES]
        names = [*expected, *sorted(beats.keys() - {*expected})]
        return [self._word(name, beats.get(name), points, now) for name in names]

    def _word(self, name: str, beat: Mapping[str, Any] | None, points: Sequence[StepPoint], now: float) -> StageWord:
        if beat is None:
            return StageWord(name=name, spoken=False)
        quiet = max(0.0, now - beat["at"])
        return StageWord(
            name=name,
            spoken=True,
            waiting_for=beat["waiting_for"],
            waited_seconds=beat["waited_seconds"] + quiet,
            quiet_seconds=quiet,
            silent=quiet > self._allowance(name, points),
            standing=_standing(beat.get("standing")),
        )

    def _allowance(self, name: str, points: Sequence[StepPoint]) -> float:
        """Seconds that a stage which lives may say nothing for."""
        if name == "recorder":
            return max(
                RECORDER_SILENT_SECONDS,
                self._document["settings"]["tree"]["recorder"]["every_seconds"] + SILENT_SECONDS,
            )
        if name != "learner":
            return SILENT_SECONDS
        if not points or points[-1].attempt != self._attempt_number:
            return FIRST_STEP_SILENT_SECONDS
        worked = [_worked_seconds(point) for point in points[-RECENT_STEPS:]]
        return max(SILENT_SECONDS, LEARNER_SILENT_STEPS * max(worked))

    def _has_ended(self, state: State, stages: Sequence[StageWord], now: float) -> bool:
        began = now if self._began_at is None else self._began_at
        spoken = [stage for stage in stages if stage.spoken]
        quiet = min((stage.quiet_seconds for stage in spoken), default=now - began)
        if state is State.FINISHED:
            return quiet > ENDED_SECONDS
        return quiet > STOPPED_SECONDS and now - began > PATIENCE_SECONDS and all(stage.silent for stage in spoken)

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


def servers_of(settings: Mapping[str, Any]) -> list[str]:
    """Stages that keep the run's own servers."""
    engine = settings.get("engine", {})
    replicas = engine.get("replicas", 1) if engine.get("serve") else 0
    return ["server" if number == 1 else f"server-{number}" for number in range(1, replicas + 1)]


def _state(hint: Hint | None, stages: Sequence[StageWord], points: Sequence[StepPoint]) -> State:
    if hint is not None and hint.finished:
        return State.FINISHED
    quiet = min((stage.quiet_seconds for stage in stages if stage.spoken), default=0.0)
    if quiet > SILENT_SECONDS:
        return State.SILENT
    return State.TRAINING if points else State.STARTING


def _standing(told: Any) -> Standing | None:
    """None also where an agrpo of another version said less."""
    names = [field.name for field in fields(Standing)]
    if not isinstance(told, Mapping) or any(name not in told for name in names):
        return None
    return Standing(**{name: told[name] for name in names})


def _worked_seconds(point: StepPoint) -> float:
    """What a step took beside waiting for groups."""
    return point.metrics.get("perf/step_s", 0.0) - point.metrics.get("perf/rollout_wait_s", 0.0)
