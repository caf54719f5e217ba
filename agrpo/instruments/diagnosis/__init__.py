"""Diagnosis: the documented readings of a run as rules over its last steps, in words, with what to change.

Rules A-110 to A-116 and A-357 to A-364 are those of docs/spec/async_grpo.md, sections 6 and 22; "agrpo/…" are our own.
docs/diagnosis.md explains each with its thresholds. A page of rules yields what it finds; a measure that was not logged
makes its rules silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agrpo.instruments.diagnosis import duplicates, policy, saturation, throughput
from agrpo.instruments.diagnosis.evidence import Evidence, needed_steps
from agrpo.instruments.diagnosis.finding import Finding, Severity
from agrpo.instruments.history import StepPoint

WINDOW = 20
"""Steps that are read. At 20 the mean of a noisy measure is good to a fifth of its step-to-step noise."""

_PAGES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    saturation.findings,
    duplicates.findings,
    throughput.findings,
    policy.findings,
)

_SILENCES: Mapping[str, frozenset[str]] = {
    "A-358": frozenset({"A-364"}),
    "A-359": frozenset({"agrpo/cut-completions"}),
    "A-360": frozenset({"A-364", "agrpo/reward-falls"}),
    "A-363": frozenset({"A-358", "A-359", "A-360", "A-361"}),
    "agrpo/engine-mismatch": frozenset({"agrpo/masked-tokens"}),
    "agrpo/stale-drops": frozenset({"A-110", "A-115"}),
}
"""Rules that read the same cause as the one that says more: a finding of the key silences the others."""


def diagnose(points: Sequence[StepPoint], settings: Mapping[str, Any], *, window: int = WINDOW) -> list[Finding]:
    """What the last `window` steps say, worst first. `settings`: the settings tree of the run document.

    Rising and falling are judged over those steps and as many before. A history too short to be read gives one note.
    """
    if len(points) < needed_steps(window):
        return [_too_few(len(points), window)]
    evidence = Evidence(history=points, size=window, settings=settings)
    found = [finding for page in _PAGES for finding in page(evidence)]
    silenced = frozenset[str]().union(*(_SILENCES.get(finding.rule, frozenset()) for finding in found))
    severities = list(Severity)
    return sorted(
        (finding for finding in found if finding.rule not in silenced),
        key=lambda finding: severities.index(finding.severity),
    )


def _too_few(steps: int, window: int) -> Finding:
    needed = needed_steps(window)
    return Finding(
        rule="agrpo/too-few-steps",
        severity=Severity.NOTE,
        title="Too early to tell",
        reading=f"{steps} steps are done. A reading needs {needed}; whether a measure rises or falls needs {2 * needed}.",
        change=f"Nothing: ask again after step {needed}.",
    )


__all__ = ["WINDOW", "Finding", "Severity", "diagnose"]
