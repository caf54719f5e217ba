"""Diagnosis: the documented readings of a run as rules over its last steps, in words, with what to change.

Rules A-110 to A-116 and A-357 to A-364 are those of docs/spec/async_grpo.md, sections 6 and 22; "agrpo/…" are our own.
docs/diagnosis.md explains each with its thresholds. A page of rules yields what it finds; a measure that was not logged
makes its rules silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from agrpo.instruments.diagnosis import collapse, duplicates, policy, saturation, throughput
from agrpo.instruments.diagnosis import waiting as waiting_rules
from agrpo.instruments.diagnosis.ending import recorded_ending
from agrpo.instruments.diagnosis.evidence import Evidence, needed_steps, percent
from agrpo.instruments.diagnosis.finding import Finding, Severity
from agrpo.instruments.diagnosis.waiting import Waiting, recorded_waiting
from agrpo.instruments.history import StepPoint

WINDOW = 20
"""Steps that are read. At 20 the mean of a noisy measure is good to a fifth of its step-to-step noise."""

_PAGES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    collapse.findings,
    saturation.findings,
    duplicates.findings,
    policy.findings,
    throughput.findings,
)

_THROUGHPUT = frozenset(
    {"A-110", "A-111", "A-112", "A-113", "A-114", "A-115", "A-116", "agrpo/lockstep", "agrpo/scoring-bound"}
)
_EQUAL_REWARDS = frozenset(
    {"A-357", "A-358", "A-359", "A-360", "A-361", "agrpo/constant-reward", "agrpo/equal-rewards"}
)
_UNSTEADY = frozenset({"agrpo/masked-tokens", "agrpo/gradient-spikes"})

_SILENCES: Mapping[str, frozenset[str]] = {
    "agrpo/nothing-to-train": _THROUGHPUT | {"agrpo/too-few-steps"},
    "agrpo/collapse": _THROUGHPUT
    | _EQUAL_REWARDS
    | _UNSTEADY
    | {"A-363", "A-364", "agrpo/one-answer", "agrpo/reward-falls", "agrpo/cut-completions", "agrpo/slow-filling"},
    "A-363": _THROUGHPUT | _EQUAL_REWARDS | _UNSTEADY | {"agrpo/slow-filling"},
    "A-358": frozenset({"A-364", "agrpo/slow-filling"}),
    "A-359": frozenset({"agrpo/cut-completions", "agrpo/one-answer", "agrpo/slow-filling"}),
    "A-360": frozenset({"A-364", "agrpo/reward-falls"}),
    "A-361": frozenset({"agrpo/slow-filling"}),
    "agrpo/constant-reward": frozenset({"agrpo/one-answer", "agrpo/slow-filling"}),
    "agrpo/slow-filling": _THROUGHPUT | {"agrpo/too-few-steps"},
    "agrpo/engine-mismatch": frozenset({"agrpo/masked-tokens"}),
    "agrpo/stale-drops": frozenset({"A-110", "A-115"}),
}
"""Rules that read the same cause as the one that says more: a finding of the key silences the others.

The furthest-reaching come first. A finding that is silenced silences none.
"""


def diagnose(
    points: Sequence[StepPoint],
    settings: Mapping[str, Any],
    *,
    window: int = WINDOW,
    waiting: Waiting | None = None,
) -> list[Finding]:
    """What the last `window` steps say, worst first. `settings`: the settings tree of the run document.

    Rising and falling are judged over those steps and as many before. A history too short to be read gives one note, or what
    the groups say that wait for a step: `waiting`, None where nobody looked.
    """
    evidence = Evidence(history=points, size=window, settings=settings)
    found = list(_waiting_findings(evidence, waiting))
    if len(points) < needed_steps(window):
        found.append(_too_few(evidence))
    else:
        found += [finding for page in _PAGES for finding in page(evidence)]
    severities = list(Severity)
    return sorted(_told_once(found), key=lambda finding: severities.index(finding.severity))


def _waiting_findings(evidence: Evidence, groups: Waiting | None) -> Iterator[Finding]:
    if groups is not None:
        yield from waiting_rules.findings(evidence, groups)


def _told_once(found: Sequence[Finding]) -> list[Finding]:
    """The findings that no other one silences."""
    rules, silent = {finding.rule for finding in found}, set[str]()
    for rule, others in _SILENCES.items():
        if rule in rules - silent:
            silent |= others
    return [finding for finding in found if finding.rule not in silent]


def _too_few(evidence: Evidence) -> Finding:
    steps, needed = len(evidence.history), evidence.needed
    done = f"{steps} steps are done" if steps > 1 else "1 step is done" if steps else "No step is done yet"
    return Finding(
        rule="agrpo/too-few-steps",
        severity=Severity.NOTE,
        title="Too early to tell",
        reading=f"{done}. A reading needs {needed}; whether a measure rises or falls needs {2 * needed}.{_so_far(evidence)}",
        change=f"Ask again after step {needed}.",
    )


def _so_far(evidence: Evidence) -> str:
    """What few steps do show: a level, without a verdict."""
    rewards, shares = evidence.values("reward"), evidence.values("frac_zero_std_groups")
    told = [
        *([f"the mean reward is {fmean(rewards):.2f}"] if rewards else []),
        *([f"in {percent(fmean(shares))} of the groups all rollouts earn the same reward"] if shares else []),
    ]
    return f" So far {'; '.join(told)}." if told else ""


__all__ = ["WINDOW", "Finding", "Severity", "Waiting", "diagnose", "recorded_ending", "recorded_waiting"]
