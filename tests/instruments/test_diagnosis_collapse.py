"""A reward that fell within a step and never came back."""

from __future__ import annotations

from agrpo.instruments.diagnosis import Finding, Severity
from tests.instruments.made_points import Measure, read, rules, with_settings

HOT = with_settings(optimizer={"learning_rate": 0.05})


def collapsed(after: float = 0.0, share: float = 1.0, at: int = 4, **more: Measure) -> dict[str, Measure]:
    """Rewards of 0.38, 0.38, 0.31 and groups that can be compared, until step `at`; then neither."""
    return {
        "reward": lambda step: (0.31 if step == 3 else 0.38) if step < at else after,
        "frac_zero_std_groups": lambda step: 0.1 if step < at else share,
        **more,
    }


def test_a_reward_that_falls_and_stays_down_is_a_collapse_by_the_learning_rate():
    measures = collapsed(
        **{
            "batch/samples_per_step": lambda step: 240.0 if step < 4 else 0.0,
            "entropy": lambda step: 0.00044 if step == 3 else None,
            "completions/clipped_ratio": 1.0,
            "completions/duplicate_frac": lambda step: 0.4 if step < 4 else 0.875,
            "reward_zero_std_groups": 0.0,
            "perf/step_s": 1.0,
            "perf/rollout_wait_s": 0.9,
            "rollout/queue_size": 0.0,
        }
    )
    assert read(measures, HOT, steps=30) == [
        Finding(
            rule="agrpo/collapse",
            severity=Severity.WARNING,
            title="The policy collapsed at step 4",
            reading="The mean reward fell from 0.38 to 0.00 at step 4 and has not come back; in 100 % of the groups all rollouts "
            "now earn the same. Nothing has been trained since step 3, which found an entropy of 0.00044 nats per token. 100 % of "
            "the completions are cut and 88 % of the rollouts repeat another of their group.",
            change="Lower optimizer.learning_rate (now 0.05) and start again from the model of before the fall: where all rollouts "
            "earn the same there is nothing left to train.",
        )
    ]


def test_a_collapse_of_long_ago_is_not_forgotten():
    assert rules(read(collapsed(), steps=200)) == ["agrpo/collapse"]
    assert rules(read(collapsed(at=31), steps=40)) == ["agrpo/collapse"]
    assert "agrpo/collapse" not in rules(read(collapsed(at=32), steps=40))


def test_a_reward_that_comes_back_or_falls_little_has_not_collapsed():
    def found(measures: dict[str, Measure]) -> bool:
        return "agrpo/collapse" in rules(read(measures))

    assert found(collapsed(after=0.13))
    assert not found(collapsed(after=0.14))
    assert not found(collapsed(share=0.74))
    assert not found({**collapsed(), "frac_zero_std_groups": 0.95})
    assert not found({**collapsed(), "reward": lambda step: 0.38 if step < 4 or step > 38 else 0.0})
    assert not found(
        {"reward": lambda step: 0.3 if step < 4 else 0.9, "frac_zero_std_groups": collapsed()["frac_zero_std_groups"]}
    )
