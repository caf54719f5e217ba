"""What diagnosis makes of a history, whichever rules speak."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agrpo.instruments.diagnosis as house
from agrpo.config.sections import SECTIONS, SamplingSection
from agrpo.engines.transformers import Transformers
from agrpo.instruments.diagnosis import Severity, diagnose
from agrpo.instruments.history import StepPoint
from agrpo.losses.clip import Clip
from agrpo.registry import knobs_of
from tests.instruments.made_points import SETTINGS, history, read, rules

PAGES = Path(house.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "diagnosis.md"


def test_a_history_too_short_to_read_says_how_many_steps_are_needed():
    (finding,) = read({"completions/clipped_ratio": 0.5}, steps=9)
    assert (finding.rule, finding.severity) == ("agrpo/too-few-steps", Severity.NOTE)
    assert finding.reading == "9 steps are done. A reading needs 10; whether a measure rises or falls needs 20."
    assert finding.change == "Ask again after step 10."
    assert rules(read({"completions/clipped_ratio": 0.5}, steps=10)) == ["agrpo/cut-completions"]


def test_few_steps_are_told_as_they_are_without_a_verdict():
    needed = "A reading needs 10; whether a measure rises or falls needs 20."
    (finding,) = read({"reward": 0.4, "frac_zero_std_groups": 0.96}, steps=1)
    so_far = "So far the mean reward is 0.40; in 96 % of the groups all rollouts earn the same reward."
    assert finding.reading == f"1 step is done. {needed} {so_far}"
    assert [finding.reading for finding in diagnose([], SETTINGS)] == [f"No step is done yet. {needed}"]


def test_a_finding_that_is_silenced_silences_none():
    order = list(house._SILENCES)  # pyright: ignore[reportPrivateUsage]
    silenced_by_later = {
        (first, later)
        for at, later in enumerate(order)
        for first in order[:at]
        if first in house._SILENCES[later]  # pyright: ignore[reportPrivateUsage]
    }
    assert silenced_by_later == set()


def test_findings_come_worst_first():
    findings = read({"frac_zero_std_groups": 0.1, "sampling/masked_mean": 0.05, "completions/clipped_ratio": 0.5})
    assert [finding.severity for finding in findings] == [Severity.WARNING, Severity.NOTE, Severity.GOOD]


def test_only_the_window_is_read():
    points = history({"completions/clipped_ratio": lambda step: 0.5 if step <= 50 else 0.0}, steps=60)
    assert rules(diagnose(points, SETTINGS)) == ["agrpo/cut-completions"]
    assert diagnose(points, SETTINGS, window=10) == []


def test_a_measure_that_few_steps_logged_says_nothing():
    def some(steps: int) -> list[str]:
        return rules(read({"completions/clipped_ratio": lambda step: 0.5 if step > 40 - steps else None}))

    assert some(9) == []
    assert some(10) == ["agrpo/cut-completions"]


def test_settings_that_are_not_there_are_no_error():
    measures = {
        "perf/step_s": 4.0,
        "perf/rollout_wait_s": 3.0,
        "rollout/backpressure_frac": 0.75,
        "rollout/queue_size": 0.0,
    }
    others = {
        "completions/duplicate_frac": 0.9,
        "frac_zero_std_groups": 0.9,
        "reward": lambda step: 0.1 * (step % 10),
        "reward_zero_std_groups": 0.5,
    }
    findings = read({**measures, **others, "sample/dropped_stale_count": 5.0, "grad_norm": 1.0}, settings={})
    assert rules(findings) == ["A-115", "A-361"]
    assert read({**measures, "completions/duplicate_frac": 0.9}, settings={})[0].rule == "A-115"


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_two_hundred_noisy_healthy_runs_give_no_warning(correlation: float):
    for seed in range(100):
        for steps in (20, 40, 70):
            findings = diagnose(healthy_run(random.Random(seed), correlation, steps), SETTINGS)
            assert [finding for finding in findings if finding.severity is Severity.WARNING] == [], (seed, steps)


def healthy_run(chance: random.Random, correlation: float, steps: int) -> list[StepPoint]:
    """Every measure wanders around a healthy value, each step resembling the one before."""

    def wander(middle: float, noise: float, low: float = 0.0, high: float = math.inf) -> Callable[[int], float]:
        drift, fresh = 0.0, math.sqrt(1 - correlation**2)
        values = [drift := correlation * drift + fresh * chance.gauss(0, noise) for _ in range(steps)]
        return lambda step: min(max(middle + values[step - 1], low), high)

    norms = [chance.lognormvariate(0, 0.5) for _ in range(steps)]
    measures: dict[str, Any] = {
        "reward": wander(0.5, 0.05),
        "reward_trained": wander(0.5, 0.05),
        "reward_zero_std_groups": wander(0.6, 0.3, high=1.0),
        "frac_zero_std_groups": wander(0.3, 0.08),
        "entropy": wander(0.3, 0.04),
        "completions/duplicate_frac": wander(0.1, 0.04),
        "completions/clipped_ratio": wander(0.05, 0.03),
        "completions/mean_length": wander(30.0, 3.0),
        "sample/staleness_max": 2.0,
        "sample/staleness_mean": wander(1.5, 0.3, high=2.0),
        "sample/dropped_stale_count": lambda step: float(step % 7 == 0),
        "sampling/masked_mean": wander(0.004, 0.004),
        "sampling/importance_sampling_ratio/mean": wander(1.0, 0.003),
        "sampling/sampling_logp_difference/mean": wander(0.05, 0.02),
        "grad_norm": lambda step: norms[step - 1],
        "rollout/samples_per_rollout": 1.0,
        "rollout/failed_count": lambda step: float(step % 11 == 0),
        "rewards/exact_match/failed_frac": wander(0.0, 0.004),
        "rollout/duration_s": wander(1.0, 0.3),
        "rollout/score_wait_s": wander(0.1, 0.1),
        "rollout/score_s": wander(0.3, 0.1),
        "rollout/backpressure_frac": wander(0.15, 0.15),
        "rollout/concurrency": wander(128.0, 40.0),
        "rollout/concurrency_cap": 512.0,
        "rollout/queue_size": wander(200.0, 60.0),
        "perf/step_s": wander(2.0, 0.4, low=0.5),
        "perf/rollout_wait_s": wander(0.1, 0.1),
    }
    return history(measures, steps)


def test_every_setting_that_a_rule_names_exists():
    known = {f"{table}.{name}" for table, section in SECTIONS.items() for name in knobs_of(section)}
    known |= {f"engine.{name}" for cls in (SamplingSection, Transformers) for name in knobs_of(cls)}
    known |= {f"loss.{name}" for name in knobs_of(Clip)} | {"loss.name", "engine.name", "prompts.shuffle"}
    tables = {name.partition(".")[0] for name in known}
    text = "".join(page.read_text() for page in PAGES.glob("*.py")) + DOCUMENT.read_text()
    named = set(re.findall(rf"\b((?:{'|'.join(tables)})\.[a-z_]+)\b(?!\()", text)) - {"run.json"}
    assert named - known == set()
    assert {"async.max_staleness", "engine.temperature", "step.zero_variance"} <= named


def test_every_rule_is_explained_in_the_document_and_no_other():
    rule = r"(?:A-1\d\d|A-3\d\d|agrpo/[a-z-]+)"
    built = {found for page in PAGES.glob("*.py") for found in re.findall(rf'rule="({rule})"', page.read_text())}
    explained = set(re.findall(rf"^\| ({rule}) \|", DOCUMENT.read_text(), re.MULTILINE))
    assert explained == built
