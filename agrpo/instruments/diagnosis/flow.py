"""The flow of rollouts through a window of steps: how long each side waited, and for what.

A wait is all of what a side waited during a step, not the mean wait of a group. The first step of an attempt is left
out: it holds the start of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agrpo.instruments.diagnosis.evidence import Evidence
from agrpo.instruments.diagnosis.finding import Severity
from agrpo.instruments.history import StepPoint
from agrpo.instruments.limits import SHARES
from agrpo.records.pace import Limit

HIGH = 0.2
"""A wait of this share of a step and more is high."""
MOSTLY_WAITING = 0.5
"""From this share on, training's wait is a warning."""
LITTLE = 0.5
"""Below this share of trained samples steps are short because there is little to train, not because training is fast."""
HARDLY = 0.25
"""Below this share there is no throughput to speak of: the groups are the cause, not who waits for whom."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The window's flow of rollouts, as far as it was measured."""

    step_seconds: float
    wait_seconds: float
    """Training's, per step."""
    pressure_seconds: float | None
    """Generation's, per step and generator. None: not measured."""
    load_seconds: float
    ceiling_seconds: float
    scoring_seconds: float
    """As `pressure_seconds`, of the load cap, the hard ceiling and the scoring queue; 0 where it was not measured."""
    concurrency: float | None
    cap: float | None
    queued: float | None
    """Scored samples where training takes them."""
    samples_per_step: float | None
    """Consumed, trained and dropped."""
    trained: float | None
    """The share of those that is trained."""
    set_aside: float | None
    """The share of the consumed groups whose rollouts all earn the same, where steps are refilled."""

    @property
    def wait(self) -> float:
        return self.wait_seconds / self.step_seconds

    @property
    def severity(self) -> Severity:
        """Of a cause that keeps training waiting. Where little is trained, training has little to do but wait."""
        idle = self.little_trained or self.replaces
        return Severity.WARNING if self.wait >= MOSTLY_WAITING and not idle else Severity.NOTE

    @property
    def replaces(self) -> bool:
        """Whether steps are long because most groups are replaced."""
        return self.set_aside is not None and self.set_aside >= LITTLE

    @property
    def little_trained(self) -> bool:
        return self.trained is not None and self.trained < LITTLE

    @property
    def hardly_trained(self) -> bool:
        return self.trained is not None and self.trained < HARDLY

    @property
    def pressure(self) -> float | None:
        return None if self.pressure_seconds is None else self.pressure_seconds / self.step_seconds

    @property
    def run_ahead_binds(self) -> bool:
        """Whether no other limit holds generation longer."""
        others = max(self.load_seconds, self.ceiling_seconds, self.scoring_seconds)
        return (self.pressure_seconds or 0.0) >= others


def flow_of(evidence: Evidence) -> Flow | None:
    """The flow of the window; None where waits were not measured."""
    steady = _steady(evidence)
    timed = [point.metrics for point in steady if {"perf/step_s", "perf/rollout_wait_s"} <= point.metrics.keys()]
    if len(timed) < evidence.needed:
        return None
    concurrency = _mean(evidence.values("rollout/concurrency", steady))
    held = {limit: _held_seconds(timed, name) for limit, name in SHARES.items()}
    samples, trained = evidence.samples_per_step, evidence.mean("batch/samples_per_step")
    return Flow(
        step_seconds=fmean(metrics["perf/step_s"] for metrics in timed),
        wait_seconds=fmean(metrics["perf/rollout_wait_s"] for metrics in timed),
        pressure_seconds=held[Limit.RUN_AHEAD],
        load_seconds=held[Limit.LOAD] or 0.0,
        ceiling_seconds=held[Limit.CEILING] or 0.0,
        scoring_seconds=held[Limit.SCORING] or 0.0,
        concurrency=concurrency,
        cap=_mean(evidence.values("rollout/concurrency_cap", steady)),
        queued=_mean(evidence.values("rollout/queue_size", steady)),
        samples_per_step=samples,
        trained=None if trained is None or not samples else trained / samples,
        set_aside=evidence.set_aside,
    )


def _steady(evidence: Evidence) -> list[StepPoint]:
    """The window without the first steps of attempts."""
    first = {attempt: point.step for point in reversed(evidence.history) for attempt in (point.attempt,)}
    return [point for point in evidence.window if point.step != first[point.attempt]]


def _held_seconds(steps: Sequence[Mapping[str, float]], name: str) -> float | None:
    """How long a limit held a generator, per step. None: no step measured it.

    Groups of the first steps may have begun to wait before the window, so that it comes to more than there was.
    """
    measured = [(measures[name], measures["perf/step_s"]) for measures in steps if name in measures]
    if not measured:
        return None
    return min(fmean(share * seconds for share, seconds in measured), fmean(seconds for _, seconds in measured))


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
