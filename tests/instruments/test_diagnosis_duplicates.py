"""Rollouts that repeat one another: independent, no longer random, or collapsing."""

from __future__ import annotations

import pytest

from agrpo.instruments.diagnosis import Finding, Severity
from tests.instruments.made_points import Measure, line, read, rules, with_settings


def repeated(share: Measure, **more: Measure) -> list[Finding]:
    return read({"completions/duplicate_frac": share, "completions/mean_length": 20.0, **more})


def jumping(low: float, high: float) -> Measure:
    return lambda step: low if step <= 20 else high


@pytest.mark.spec("A-362")
def test_hardly_any_duplicates_are_independent_sampling():
    (finding,) = repeated(0.05)
    assert finding == Finding(
        rule="A-362",
        severity=Severity.GOOD,
        title="Rollouts are sampled independently",
        reading="5.0 % of the rollouts repeat another of their group.",
        change="Nothing.",
    )
    assert repeated(0.051) == []


@pytest.mark.spec("A-363")
def test_a_jump_to_all_duplicates_is_sampling_that_is_no_longer_random():
    (finding,) = repeated(jumping(0.1, 0.86), entropy=0.5)
    assert (finding.rule, finding.severity) == ("A-363", Severity.WARNING)
    assert finding.reading == (
        "86 % of the rollouts repeat another of their group; at 8 rollouts per prompt 88 % would be all of them. Yet the policy "
        "leaves 10.0 nats open per answer: it knows more than one."
    )
    assert "engine.temperature (now 1)" in finding.change
    assert repeated(jumping(0.1, 0.78), entropy=0.5) == []
    assert repeated(jumping(0.6, 0.86), entropy=0.5) == []


def test_a_jump_of_long_ago_is_not_forgotten():
    measures: dict[str, Measure] = {"completions/duplicate_frac": jumping(0.1, 0.86), "entropy": 0.5}
    assert rules(read({**measures, "completions/mean_length": 20.0}, steps=100)) == ["A-363"]


def test_duplicates_from_the_first_step_on_are_no_chance_either():
    assert rules(repeated(0.86, entropy=0.5)) == ["A-363"]


def test_without_entropy_nobody_is_accused_unless_the_temperature_is_near_zero():
    (finding,) = repeated(0.86)
    assert (finding.rule, finding.severity) == ("agrpo/one-answer", Severity.NOTE)
    assert "lower optimizer.learning_rate (now 1e-06)" in finding.change
    assert rules(repeated(jumping(0.1, 0.86))) == ["agrpo/one-answer"]
    cold = with_settings(engine={"temperature": 0.05})
    (finding,) = read({"completions/duplicate_frac": 0.86}, cold)
    assert (finding.rule, finding.severity) == ("A-363", Severity.WARNING)
    assert finding.change.startswith("Raise engine.temperature (now 0.05): near 0 the likeliest token is always taken")


def test_the_last_step_that_trained_says_whether_the_policy_had_more_to_say():
    def last_trained(entropy: float) -> list[str]:
        return rules(repeated(jumping(0.1, 0.86), entropy=lambda step: entropy if step == 20 else None))

    assert last_trained(0.09) == []
    assert last_trained(0.11) == ["agrpo/one-answer"]


def test_a_policy_that_knows_one_answer_explains_its_duplicates():
    assert repeated(jumping(0.1, 0.86), entropy=0.09) == []
    cold = with_settings(engine={"temperature": 0.01})
    measures = {"completions/duplicate_frac": 0.86, "completions/mean_length": 20.0, "entropy": 0.001}
    assert rules(read(measures, cold)) == ["A-363"]


@pytest.mark.spec("A-364")
def test_duplicates_that_rise_while_entropy_falls_are_a_collapse():
    (finding,) = repeated(line(0.1, 0.5), entropy=line(0.4, 0.2), reward=0.5)
    assert (finding.rule, finding.severity) == ("A-364", Severity.WARNING)
    assert finding.reading == (
        "Rollouts that repeat another of their group rose from 15 % to 45 % while entropy fell from 0.377 to 0.223 nats per token. "
        "The reward does not rise."
    )
    assert finding.change == (
        "Raise engine.temperature (now 1) or loss.epsilon_high (now 0.28), or lower optimizer.learning_rate (now 1e-06)."
    )
    centred = with_settings(loss={"name": "score_centering", "epsilon_high": 0.28})
    measures: dict[str, Measure] = {"completions/mean_length": 20.0, "entropy": line(0.4, 0.2)}
    (finding,) = read({"completions/duplicate_frac": line(0.1, 0.5), **measures}, centred)
    assert finding.change.startswith("Raise engine.temperature (now 1), or lower")
    assert repeated(line(0.1, 0.5), entropy=line(0.4, 0.36), reward=0.5) == []
    assert repeated(line(0.1, 0.5), entropy=line(0.2, 0.4), reward=0.5) == []
    assert repeated(line(0.1, 0.22), entropy=line(0.4, 0.2), reward=0.5) == []


def test_a_collapse_without_a_reward_says_nothing_of_it():
    (finding,) = repeated(line(0.1, 0.5), entropy=line(0.4, 0.2))
    assert (finding.severity, finding.reading.endswith("nats per token.")) == (Severity.WARNING, True)


def test_a_collapse_that_the_reward_still_pays_for_is_a_note():
    (finding,) = repeated(line(0.1, 0.5), entropy=line(0.4, 0.2), reward=line(0.3, 0.6))
    assert (finding.rule, finding.severity) == ("A-364", Severity.NOTE)
    assert finding.reading.endswith("The reward rose from 0.33 to 0.57: the policy grows surer of what is right.")
    assert finding.change.startswith("Nothing while the reward rises.")


def test_sampling_that_is_not_random_is_said_once_and_not_as_saturation():
    saturated = {"frac_zero_std_groups": 0.95, "reward_zero_std_groups": 0.5, "reward": 0.5}
    assert rules(repeated(jumping(0.1, 0.86), entropy=0.5, **saturated)) == ["A-363"]
    assert rules(repeated(0.4, entropy=0.5, **saturated)) == ["A-361"]
    cold = with_settings(engine={"temperature": 0.01})
    measures = {
        "completions/duplicate_frac": 0.86,
        "sampling/masked_mean": 0.1,
        "grad_norm": lambda step: 0.1 * (step % 20),
    }
    flow = {"perf/step_s": 1.0, "perf/rollout_wait_s": 0.9, "rollout/queue_size": 0.0}
    assert rules(read({**measures, **saturated, **flow, "reward": line(0.4, 0.5)}, cold)) == ["A-363"]


def test_growing_surer_at_the_top_is_said_once():
    top = {"frac_zero_std_groups": line(0.3, 0.9), "reward_zero_std_groups": 1.0, "reward": line(0.6, 0.95)}
    assert rules(repeated(line(0.1, 0.5), entropy=line(0.4, 0.2), **top)) == ["A-358"]


@pytest.mark.parametrize(
    ("share", "entropy", "found"),
    [
        (jumping(0.55, 0.86), 0.11, ["A-363"]),
        (jumping(0.57, 0.86), 0.11, []),
        (jumping(0.55, 0.86), 0.09, []),
        (line(0.1, 0.24), line(0.4, 0.29), ["A-364"]),
        (line(0.1, 0.225), line(0.4, 0.29), []),
        (line(0.1, 0.24), line(0.4, 0.31), []),
    ],
)
def test_the_least_jumps_and_changes_that_count(share: Measure, entropy: Measure, found: list[str]):
    assert rules(repeated(share, entropy=entropy)) == found
