"""The policy and its samples: agrpo's own rules, each with its near miss."""

from __future__ import annotations

from agrpo.instruments.diagnosis import Finding, Severity, diagnose
from tests.instruments.made_points import SETTINGS, Measure, history, line, read, rules, with_settings


def only(findings: list[Finding]) -> tuple[str, Severity, str]:
    (finding,) = findings
    return finding.rule, finding.severity, finding.reading


def test_a_falling_reward_is_a_warning():
    assert only(read({"reward": line(0.7, 0.5)})) == (
        "agrpo/reward-falls",
        Severity.WARNING,
        "The mean reward fell from 0.68 to 0.52 over the last 40 steps.",
    )
    assert read({"reward": line(0.7, 0.58)}) == []
    assert read({"reward": line(0.7, 0.5)}, steps=39) == []


def test_a_ratio_off_one_under_the_same_weights_is_the_engines():
    measures = {
        "sample/staleness_max": lambda step: 0.0 if step <= 2 else 2.0,
        "sampling/sampling_logp_difference/mean": lambda step: 0.002 if step <= 2 else 0.5,
        "sampling/importance_sampling_ratio/mean": lambda step: 1.011 if step <= 2 else 1.5,
    }
    assert only(read(measures)) == (
        "agrpo/engine-mismatch",
        Severity.WARNING,
        "In 2 steps that trained on samples of their own version (the last: step 2), log-probs differ by 0.002 nats per token "
        "and the mean importance ratio is 1.011; it should be 1.",
    )
    assert read({**measures, "sampling/importance_sampling_ratio/mean": 1.009}) == []
    assert rules(read({**measures, "sampling/sampling_logp_difference/mean": 0.02})) == ["agrpo/engine-mismatch"]
    assert read({**measures, "sample/staleness_max": 1.0}) == []


def test_rollouts_that_give_nothing_to_train_are_a_warning():
    assert only(read({"rollout/samples_per_rollout": 0.95})) == (
        "agrpo/empty-rollouts",
        Severity.WARNING,
        "A rollout that was answered gives 0.95 samples on average: at least 5.0 % give none.",
    )
    assert read({"rollout/samples_per_rollout": 0.96}) == []


def test_cut_completions_are_a_note_and_then_a_warning():
    rule = "agrpo/cut-completions"
    told = "% of the completions do not end by themselves. A completion has 60 tokens on average."
    measures = {"completions/mean_length": 60.0}
    assert only(read({**measures, "completions/clipped_ratio": 0.1})) == (rule, Severity.NOTE, f"10 {told}")
    assert only(read({**measures, "completions/clipped_ratio": 0.25})) == (rule, Severity.WARNING, f"25 {told}")
    assert read({**measures, "completions/clipped_ratio": 0.09}) == []


def test_completions_cut_where_nothing_passes_are_said_once():
    bottom = {"frac_zero_std_groups": 0.9, "reward_zero_std_groups": 0.0, "reward": 0.02}
    assert rules(read({**bottom, "completions/clipped_ratio": 0.5})) == ["A-359"]


def test_completions_cut_at_first_and_short_afterwards_are_the_length_limits_doing():
    def at_first(cut: float, reward: Measure = 0.13, now: float = 0.05) -> list[Finding]:
        measures = {"completions/clipped_ratio": lambda step: cut if step <= 5 else now, "completions/mean_length": 2.8}
        return read({**measures, "reward": reward})

    (finding,) = at_first(0.24)
    assert (finding.rule, finding.severity) == ("agrpo/cut-completions", Severity.NOTE)
    assert finding.title == "The length limit taught short answers, not better ones"
    assert finding.reading == (
        "In the first 5 steps 24 % of the completions were cut by the length limit; now 5.0 % are, for answers grew short, 2.8 "
        "tokens on average. The mean reward went from 0.13 to 0.13."
    )
    assert [finding.severity for finding in at_first(0.25)] == [Severity.WARNING]
    assert len(at_first(0.15)) == 1
    assert at_first(0.149) == []
    assert len(at_first(0.18, now=0.09)) == 1
    assert at_first(0.18, now=0.091) == []
    assert at_first(0.24, reward=lambda step: 0.13 if step <= 20 else 0.18) == []


def test_a_reward_that_fails_is_named():
    (finding,) = read({"rewards/judge/failed_frac": 0.05, "rewards/format/failed_frac": 0.009})
    assert (finding.rule, finding.severity) == ("agrpo/reward-fails", Severity.WARNING)
    assert finding.title == "The reward judge fails"
    assert finding.reading.startswith(
        "For 5.0 % of the answered rollouts it raised, timed out or died, and gave no value"
    )
    assert "agrpo questions RUN failed_rewards" in finding.change
    assert [finding.severity for finding in read({"rewards/judge/failed_frac": 0.049})] == [Severity.NOTE]
    assert [finding.severity for finding in read({"rewards/judge/failed_frac": 0.01})] == [Severity.NOTE]


def test_rollouts_without_an_answer_are_told_as_a_share():
    rule, told = "agrpo/rollouts-fail", "of those of the last 20 steps, came back without an answer."
    assert only(read({"rollout/failed_count": 2.6})) == (rule, Severity.NOTE, f"52 rollouts, 1.0 % {told}")
    assert only(read({"rollout/failed_count": 12.8})) == (rule, Severity.WARNING, f"256 rollouts, 5.0 % {told}")
    assert [finding.severity for finding in read({"rollout/failed_count": 12.7})] == [Severity.NOTE]
    assert read({"rollout/failed_count": 2.5}) == []


def test_rollouts_that_fail_point_to_what_ended_them():
    (finding,) = read({"rollout/failed_count": 2.6})
    assert "SELECT stop_reason, error, count(*)" in finding.change
    assert (
        "For environment_error mend the environment ([environments]); for timeout raise engine.request_timeout"
        in finding.change
    )


def test_prompts_that_were_left_out_are_none_of_which_rollouts_failed():
    assert read({"rollout/failed_count": 2.5, "rollout/unasked_count": 1.0})[0].reading.startswith("50 rollouts, 1.0 %")
    assert read({"rollout/failed_count": 1.2, "rollout/unasked_count": 16.0}) == []
    assert rules(read({"rollout/failed_count": 1.3, "rollout/unasked_count": 16.0})) == ["agrpo/rollouts-fail"]


def test_samples_dropped_as_stale_are_told_as_a_share():
    rule = "agrpo/stale-drops"
    told = "of what the last 20 steps took, were more than 2 weight updates old."
    assert only(read({"sample/dropped_stale_count": 12.8})) == (rule, Severity.NOTE, f"256 samples, 5.0 % {told}")
    assert only(read({"sample/dropped_stale_count": 52.0})) == (rule, Severity.WARNING, f"1040 samples, 20 % {told}")
    assert read({"sample/dropped_stale_count": 12.7}) == []


def test_masked_tokens_are_a_note_and_then_a_warning():
    rule = "agrpo/masked-tokens"
    told = "% of the trained tokens are masked: their importance ratio is out of bounds."
    assert only(read({"sampling/masked_mean": 0.02})) == (rule, Severity.NOTE, f"2.0 {told}")
    assert only(read({"sampling/masked_mean": 0.1})) == (rule, Severity.WARNING, f"10 {told}")
    assert read({"sampling/masked_mean": 0.019}) == []


def test_a_gradient_far_above_its_median_is_a_spike():
    def spiking(high: float) -> list[Finding]:
        return read({"grad_norm": lambda step: high if step in (25, 33) else 0.5})

    assert only(spiking(5.0)) == (
        "agrpo/gradient-spikes",
        Severity.NOTE,
        "Its norm reached 5.00, 10 times its median of 0.50. Steps: 25, 33.",
    )
    still = read({"grad_norm": lambda step: 749.67 if step == 33 else 1e-11})
    assert only(still)[2] == "Its norm reached 749.67; in most steps it is near 0. Steps: 33."
    assert read({"grad_norm": lambda step: 0.099 if step == 33 else 1e-11}) == []
    assert spiking(4.99) == []
    assert diagnose(history({"grad_norm": lambda step: 5.0 if step == 20 else 0.5}), SETTINGS) == []


def test_just_below_the_bound_of_a_warning_is_a_note():
    for name, value in (
        ("completions/clipped_ratio", 0.24),
        ("sampling/masked_mean", 0.099),
        ("sample/dropped_stale_count", 51.1),
    ):
        assert [finding.severity for finding in read({name: value})] == [Severity.NOTE], name


def test_the_bound_of_disagreement_in_nats():
    measures = {"sample/staleness_max": 0.0, "sampling/importance_sampling_ratio/mean": 1.0}
    assert rules(read({**measures, "sampling/sampling_logp_difference/mean": 0.02})) == ["agrpo/engine-mismatch"]
    assert read({**measures, "sampling/sampling_logp_difference/mean": 0.019}) == []


def test_mixed_precision_has_a_bound_of_its_own_and_is_named():
    """What docs/models.md promises of a run in mixed precision is no reason to warn."""
    settings = with_settings(model={"mixed_precision": "bfloat16"})

    def told(nats: float, ratio: float) -> list[Finding]:
        difference, name = "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean"
        return read({"sample/staleness_max": 0.0, difference: nats, name: ratio}, settings)

    assert told(0.099, 0.9) == told(0.03, 1.105) == []
    (finding,) = told(0.1, 1.0)
    assert finding.rule == "agrpo/engine-mismatch"
    assert finding.change == (
        'Let both compute alike: model.mixed_precision = "bfloat16" explains less than 0.1 nats, and without it both are exact '
        "to 1e-5; then look for a difference in attention or templates."
    )
    assert rules(told(0.0, 1.106)) == ["agrpo/engine-mismatch"]
