"""Groups that agree: every row of the documented table, and its near miss."""

from __future__ import annotations

from typing import Any

import pytest

from agrpo.instruments.diagnosis import Finding, Severity, diagnose
from tests.instruments.made_points import SETTINGS, Measure, history, line, read, rules, with_settings


def equal(share: Measure, reward_of_equal: Measure, reward: Measure, **more: Any) -> list[Finding]:
    settings = more.pop("settings", SETTINGS)
    measures = {"frac_zero_std_groups": share, "reward_zero_std_groups": reward_of_equal, "reward": reward}
    return read({**measures, **more}, settings)


@pytest.mark.spec("A-357")
def test_few_equal_groups_are_healthy_whatever_they_earn():
    (finding,) = equal(0.25, lambda step: float(step % 2), 0.4)
    assert finding == Finding(
        rule="A-357",
        severity=Severity.GOOD,
        title="Most groups have something to learn from",
        reading="Only in 25 % of the groups all rollouts earn the same reward.",
        change="Nothing.",
    )
    assert rules(equal(0.26, lambda step: float(step % 2), 0.4)) == []


@pytest.mark.spec("A-358")
def test_more_and_more_groups_that_all_pass_are_saturated():
    (finding,) = equal(line(0.1, 0.8), 0.95, line(0.5, 0.9))
    assert (finding.rule, finding.severity) == ("A-358", Severity.NOTE)
    assert finding.reading == (
        "In 63 % of the groups (rising, from 18 % to 72 %) all rollouts earn the same reward, on average 0.95 in a range of "
        "0 to 1; the mean reward of all groups is 0.80, lately 0.85. There is little left to learn from these prompts."
    )
    assert rules(equal(line(0.1, 0.6), 0.9, line(0.5, 0.9))) == ["A-358"]
    assert rules(equal(line(0.1, 0.6), 0.9, 0.9)) == []
    assert rules(equal(line(0.1, 0.6), 0.89, line(0.5, 0.9))) == []


@pytest.mark.spec("A-358")
def test_a_run_that_stays_at_the_top_is_saturated_too():
    assert rules(equal(0.8, 0.97, 0.95)) == ["A-358"]
    assert rules(equal(0.49, 0.97, 0.95)) == []


@pytest.mark.spec("A-359")
def test_groups_that_all_fail_are_stuck_at_the_bottom():
    (finding,) = equal(0.9, 0.01, 0.02, **{"completions/clipped_ratio": 0.6})
    assert (finding.rule, finding.severity) == ("A-359", Severity.WARNING)
    assert finding.reading == (
        "In 90 % of the groups all rollouts earn the same reward, on average 0.01 in a range of 0 to 1; the mean reward of all "
        "groups is 0.02. 60 % of the completions are cut before the model ends them."
    )
    assert "engine.max_completion_length (now 64)" in finding.change
    assert equal(0.49, 0.01, 0.02) == []
    assert equal(0.9, 0.01, 0.21) == []
    assert equal(0.9, 0.01, line(0.02, 0.2)) == []
    assert rules(equal(0.9, 0.11, 0.12)) == ["A-361"]


@pytest.mark.spec("A-360")
def test_groups_that_passed_and_now_fail_together_are_a_regression():
    (finding,) = equal(
        line(0.3, 0.7), line(0.9, 0.3), line(0.7, 0.4), entropy=0.02, **{"completions/duplicate_frac": 0.5}
    )
    assert (finding.rule, finding.severity) == ("A-360", Severity.WARNING)
    assert finding.reading == (
        "In 60 % of the groups (rising, from 35 % to 65 %) all rollouts earn the same reward, on average 0.44 in a range of 0 to 1; the "
        "mean reward of all groups is 0.47. It fell from 0.67 to 0.43, and that of those groups from 0.83 to 0.37. Meanwhile "
        "50 % of the rollouts repeat another of their group; entropy is 0.020 nats per token."
    )
    assert rules(equal(line(0.3, 0.7), 0.5, line(0.7, 0.4))) == ["agrpo/reward-falls", "A-361"]
    assert rules(equal(line(0.3, 0.7), line(0.9, 0.3), 0.5)) == ["A-361"]
    assert rules(equal(0.6, line(0.9, 0.3), line(0.7, 0.4))) == ["agrpo/reward-falls", "A-361"]


@pytest.mark.spec("A-361")
def test_many_groups_that_agree_in_the_middle_are_a_mixture():
    (finding,) = equal(0.5, 0.5, 0.5)
    assert (finding.rule, finding.severity) == ("A-361", Severity.NOTE)
    assert finding.reading.startswith(
        "In 50 % of the groups all rollouts earn the same reward, on average 0.50 in a range of 0"
    )
    assert equal(0.49, 0.5, 0.5) == []


def test_the_range_of_a_weighted_reward_follows_from_its_weights():
    settings = {**SETTINGS, "rewards": [{"name": "accuracy", "weight": 2.0}, {"name": "exact_match", "weight": -1.0}]}
    (finding,) = equal(0.8, 1.7, 1.6, settings=settings)
    assert (finding.rule, "a range of -1 to 2;" in finding.reading) == ("A-358", True)
    assert rules(equal(0.8, 1.69, 1.6, settings=settings)) == ["A-361"]


def test_the_range_of_a_reward_of_ones_own_is_what_was_seen_and_says_so():
    settings = {**SETTINGS, "rewards": [{"name": "my:reward"}]}
    seen = {"reward_trained": lambda step: 30.0 if step == 1 else 20.0}
    (finding,) = equal(0.8, 2.0, 4.0, settings=settings, **seen)
    assert (finding.rule, "in a range of 2 to 30 as seen so far;" in finding.reading) == ("A-359", True)


def test_a_reward_that_gives_everyone_nothing_never_fires():
    settings = {**SETTINGS, "rewards": [{"name": "my:reward"}]}
    assert rules(equal(1.0, 0.0, 0.0, settings=settings)) == ["A-359"]
    (finding,) = equal(1.0, 0.0, 0.0, settings=settings)
    assert (
        finding.reading
        == "In 100 % of the groups all rollouts earn the same reward: 0.00, and no step has shown another."
    )


def test_a_reward_that_gives_everyone_the_same_is_asked_whether_it_is_constant():
    settings = {**SETTINGS, "rewards": [{"name": "my:reward"}]}
    (finding,) = equal(1.0, 3.0, 3.0, settings=settings)
    assert (finding.rule, finding.severity) == ("agrpo/constant-reward", Severity.WARNING)
    assert finding.reading == "Every rollout of 40 steps earned 3.00: there is nothing to prefer."
    assert "is it constant?" in finding.change
    assert rules(equal(1.0, 3.0, lambda step: 3.0 if step > 1 else 2.0, settings=settings)) == ["A-358"]
    assert rules(equal(1.0, 1.0, 1.0)) == ["A-358"]


def test_steps_with_few_equal_groups_say_little_of_what_those_earn():
    share, reward_of_equal = line(0.06, 0.9), lambda step: 0.0 if step < 24 else 0.95
    (finding,) = equal(lambda step: 0.02 if step < 24 else 0.9, reward_of_equal, 0.5)
    assert (finding.rule, "on average 0.95" in finding.reading) == ("A-358", True)
    assert rules(equal(share, 0.89, line(0.3, 1.0))) == ["A-361"]
    assert rules(equal(share, line(0.8, 0.95), line(0.3, 1.0))) == ["A-358"]


def test_more_room_is_offered_only_where_completions_are_cut():
    for cut, offered in ((0.01, True), (0.009, False)):
        (finding,) = equal(0.9, 0.0, 0.0, **{"completions/clipped_ratio": cut})
        assert ("engine.max_completion_length" in finding.change) is offered


def test_a_share_whose_reward_is_not_measured_is_told_without_a_verdict():
    (finding,) = read({"frac_zero_std_groups": 0.5, "reward": 0.9})
    assert (finding.rule, finding.severity) == ("agrpo/equal-rewards", Severity.NOTE)
    assert read({"frac_zero_std_groups": 0.49, "reward": 0.9}) == []


def test_refilled_steps_are_offered_where_groups_are_kept_or_dropped():
    for choice, share, offered in (("drop", 0.75, True), ("drop", 0.81, False), ("refill", 0.75, False)):
        settings = with_settings(step={"zero_variance": choice})
        (finding,) = equal(share, 0.97, 0.95, settings=settings)
        told = 'With step.zero_variance = "refill" steps are filled with groups that still teach, at 4.0 times the rollouts.'
        assert (told in finding.change) is offered
    (finding,) = equal(line(0.3, 0.9), 0.97, 0.95, settings=with_settings(step={"zero_variance": "drop"}))
    assert "refill" not in finding.change


def test_refill_is_named_where_it_is_what_takes_the_rollouts():
    (finding,) = equal(0.75, 0.97, 0.95)
    assert finding.change.endswith(
        'Meanwhile step.zero_variance = "refill" costs 4.0 times the rollouts; with "drop" steps stay short.'
    )
    (finding,) = equal(0.75, 0.97, 0.95, settings=with_settings(**{"async": {"max_staleness": 0}}))
    assert finding.change.endswith("at 4.0 times the rollouts.")


def test_a_trend_needs_both_windows_and_a_level_only_one():
    measures: dict[str, Measure] = {"frac_zero_std_groups": line(0.1, 0.6, 40), "reward_zero_std_groups": 0.95}
    rising = history({**measures, "reward": line(0.5, 0.9, 40)})
    assert rules(diagnose(rising[20:], SETTINGS)) == ["A-358"]
    assert rules(diagnose(rising[21:], SETTINGS)) == []


@pytest.mark.parametrize(
    ("share", "reward", "found"),
    [
        (line(0.3, 0.44), line(0.85, 0.92), ["A-358"]),
        (line(0.3, 0.42), line(0.85, 0.92), []),
        (line(0.3, 0.44), line(0.85, 0.91), []),
        (0.5, 0.9, ["A-358"]),
    ],
)
def test_the_least_changes_that_count_at_the_top(share: Measure, reward: Measure, found: list[str]):
    """The medians of the outer quarters of 40 steps lie 30/39 of a line's change apart."""
    assert rules(equal(share, 0.95, reward)) == found


def test_the_bounds_of_being_stuck():
    assert rules(equal(0.5, 0.1, 0.2)) == ["A-359"]
