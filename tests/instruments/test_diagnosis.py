"""What diagnosis makes of a history, whichever rules speak."""

from __future__ import annotations

from agrpo.instruments.diagnosis import Severity, diagnose
from agrpo.instruments.history import StepPoint


def test_a_history_too_short_to_read_says_how_many_steps_are_needed():
    points = [StepPoint(step=step, attempt=0, finished_at=0.0, num_prompts=step, metrics={}) for step in range(1, 10)]
    (finding,) = diagnose(points, {})
    assert (finding.rule, finding.severity) == ("agrpo/too-few-steps", Severity.NOTE)
    assert finding.reading == "9 steps are done. A reading needs 10; whether a measure rises or falls needs 20."
    assert diagnose([*points, points[-1]], {}) == []
