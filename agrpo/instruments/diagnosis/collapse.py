"""Collapse: a reward that fell within a step and never came back, because an update broke the policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from agrpo.instruments.diagnosis.evidence import Evidence, percent
from agrpo.instruments.diagnosis.finding import Finding, Severity
from agrpo.instruments.diagnosis.reward_range import reward_range
from agrpo.instruments.history import StepPoint

LEAST_FALL = 0.25
"""Of the reward's range: far beyond the luck of the prompts of a step."""
LEAST_LOSS = 0.4
"""Rise of the share of equal-reward groups: what could still be compared before is lost."""
LOST = 0.75
"""From this share on, next to nothing can be trained."""
BEFORE = 5
"""Steps before the fall that are compared with all that follow."""


@dataclass(frozen=True, kw_only=True)
class _Fall:
    """All rewards from `step` on lie below those of the steps before it."""

    step: int
    before: float
    """Median of the steps before."""
    after: float
    """Median of all that follow."""
    edge: float
    """How far this step fell below the one before it."""

    @property
    def depth(self) -> float:
        return self.before - self.after


def findings(evidence: Evidence) -> Iterator[Finding]:
    """One reading at most."""
    fall = _steepest_fall(evidence)
    share = evidence.mean("frac_zero_std_groups")
    if fall is None or share is None:
        return
    yield Finding(
        rule="agrpo/collapse",
        severity=Severity.WARNING,
        title=f"The policy collapsed at step {fall.step}",
        reading=f"The mean reward fell from {fall.before:.2f} to {fall.after:.2f} at step {fall.step} and has not come back; in "
        f"{percent(share)} of the groups all rollouts now earn the same.{_last_update(evidence)}{_answers(evidence)}",
        change=f"Lower {evidence.named('optimizer.learning_rate')} and start again from the model of before the fall: where all "
        "rollouts earn the same there is nothing left to train.",
    )


def _steepest_fall(evidence: Evidence) -> _Fall | None:
    names = ("reward", "frac_zero_std_groups")
    points = [
        point for point in evidence.history if all(math.isfinite(point.metrics.get(name, math.nan)) for name in names)
    ]
    falls = [_fall_at(points, at) for at in range(1, len(points) - evidence.needed + 1)]
    least = LEAST_FALL * reward_range(evidence).width
    deep = [fall for fall in falls if fall is not None and least > 0 and fall.depth >= least]
    return max(deep, key=lambda fall: fall.edge, default=None)


def _fall_at(points: Sequence[StepPoint], at: int) -> _Fall | None:
    before, after = points[max(at - BEFORE, 0) : at], points[at:]
    rewards, fallen = _values(before, "reward"), _values(after, "reward")
    if max(fallen) >= min(rewards):
        return None
    told_apart, lost = fmean(_values(before, "frac_zero_std_groups")), fmean(_values(after, "frac_zero_std_groups"))
    if lost < LOST or lost - told_apart < LEAST_LOSS:
        return None
    return _Fall(step=points[at].step, before=median(rewards), after=median(fallen), edge=rewards[-1] - fallen[0])


def _values(points: Sequence[StepPoint], name: str) -> list[float]:
    return [point.metrics[name] for point in points]


def _last_update(evidence: Evidence) -> str:
    """What the last update left, where it was before the last step."""
    trained = [point for point in evidence.history if point.metrics.get("batch/samples_per_step")]
    if not trained or trained[-1] is evidence.history[-1]:
        return ""
    entropy = trained[-1].metrics.get("entropy")
    left = "" if entropy is None else f", which found an entropy of {entropy:.2g} nats per token"
    return f" Nothing has been trained since step {trained[-1].step}{left}."


def _answers(evidence: Evidence) -> str:
    """What the completions are like now."""
    cut, repeated = evidence.mean("completions/clipped_ratio"), evidence.mean("completions/duplicate_frac")
    told = [
        *([] if cut is None else [f"{percent(cut)} of the completions are cut"]),
        *([] if repeated is None else [f"{percent(repeated)} of the rollouts repeat another of their group"]),
    ]
    return f" {' and '.join(told)}." if told else ""
