"""Keeping stages at work: one that dies or stands still is started again, a few times, with growing pauses.

A stage that reports an error it would meet again is not started again (`report.may_pass`). What a stage has behind it
counts only while it works: after `steady_seconds` of it its earlier deaths are forgotten.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agrpo.config import SupervisionSection
from agrpo.errors import StageFailed
from agrpo.stages import whereabouts
from agrpo.stages.process import LOOK_SECONDS, OnLine, Supervisor
from agrpo.stages.stage_process import StageProcess
from agrpo.stages.watchdog import Watchdog

logger = logging.getLogger(__name__)

OnEvent = Callable[[str, dict[str, Any]], None]
"""Told what becomes of the stages, in the thread that watches: `stage_started`, `stage_stalled`, `stage_restarted` or
`stage_failed`, with `stage`, `incarnation`, `pid`, and but for the first the `reason`. It must not raise."""


@dataclass(kw_only=True, slots=True)
class Restarts:
    """The deaths of one stage that are not forgotten."""

    rule: SupervisionSection
    deaths: int = 0

    def pause_seconds(self, worked_seconds: float) -> float | None:
        """Count a death after so many seconds of work. How long to pause before the next start; None: no more of them."""
        if worked_seconds >= self.rule.steady_seconds:
            self.deaths = 0
        self.deaths += 1
        if self.deaths > self.rule.restarts:
            return None
        return min(self.rule.first_pause_seconds * 2.0 ** (self.deaths - 1), self.rule.longest_pause_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Death:
    """One end that was not asked for."""

    why: str
    may_pass: bool
    """Whether the stage may fare better when it is started again."""


class Supervision:
    """The rule for the stages of one run, each in a thread of its caller's."""

    def __init__(
        self,
        supervisor: Supervisor,
        rule: SupervisionSection,
        *,
        watchdog: Watchdog | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        """Without a `watchdog` no stage is taken to stand still, and all the time it lives counts as work."""
        self._supervisor = supervisor
        self._rule = rule
        self._watchdog = watchdog
        self._on_event = on_event

    def run(
        self,
        stage: str,
        stop: threading.Event,
        *,
        finish: threading.Event | None = None,
        env: Mapping[str, str] | None = None,
        on_line: OnLine | None = None,
    ) -> None:
        """Start a stage and keep it at work until it has ended well, or was stopped. Raises `StageFailed`.

        `stop` and `finish`: see `Supervisor.wait`.
        """
        restarts, death = Restarts(rule=self._rule), None
        while True:
            started = self._supervisor.start(stage, env, on_line)
            self._tell("stage_restarted" if death else "stage_started", started, death.why if death else None)
            death = self._death(started, stop, finish)
            if death is None:
                return
            if stop.is_set() and death.may_pass:
                logger.warning("%s; it is not started again, since the run ends", death.why)
                return
            pause = restarts.pause_seconds(self._worked_seconds(started)) if death.may_pass else None
            if pause is None:
                failure = f"{death.why}{self._limit() if death.may_pass else ''}"
                self._tell("stage_failed", started, failure)
                raise StageFailed(failure)
            told = f"starting it again in {pause:.3g} s, restart {restarts.deaths} of {self._rule.restarts}"
            logger.warning("%s; %s", death.why, told)
            if _paused(pause, stop, finish):
                return

    def _death(self, stage: StageProcess, stop: threading.Event, finish: threading.Event | None) -> _Death | None:
        """What the stage died of, once it has; None: it has ended well, or was stopped."""
        watchdog = self._watchdog
        if watchdog is not None:
            watchdog.watch(stage)
        hung = None if watchdog is None else lambda: watchdog.verdict(stage)
        try:
            verdict = self._supervisor.wait(stage, stop, finish=finish, hung=hung)
        except StageFailed as failure:
            report = stage.report
            return _Death(why=str(failure), may_pass=report is None or report.passing or stage.gone_unasked)
        if verdict is None:
            return None
        where = whereabouts.asked(stage)
        told = verdict if where is None else f"{verdict}; {where}"
        why = f"stage {stage.name} {told} (all it printed: {stage.log_path})"
        logger.warning("%s; ending it", why)
        self._tell("stage_stalled", stage, why)
        self._supervisor.stop(stage)
        return _Death(why=why, may_pass=True)

    def _worked_seconds(self, stage: StageProcess) -> float:
        if self._watchdog is None:
            return time.monotonic() - stage.started_at
        return self._watchdog.worked_seconds(stage)

    def _limit(self) -> str:
        if self._rule.restarts == 0:
            return "; it is not started again (supervision.restarts = 0)"
        return f"; it was started again {self._rule.restarts} times, the limit (supervision.restarts)"

    def _tell(self, kind: str, stage: StageProcess, reason: str | None) -> None:
        if self._on_event is not None:
            why = {} if reason is None else {"reason": reason}
            self._on_event(kind, {"stage": stage.name, "incarnation": stage.incarnation, "pid": stage.pid, **why})


def _paused(seconds: float, stop: threading.Event, finish: threading.Event | None) -> bool:
    """Wait before a restart; whether the run was stopped meanwhile. A stage that is to finish is wanted at once."""
    until = time.monotonic() + seconds
    while not stop.is_set() and (finish is None or not finish.is_set()):
        left = until - time.monotonic()
        if left <= 0:
            return False
        stop.wait(min(left, LOOK_SECONDS))
    return stop.is_set()
