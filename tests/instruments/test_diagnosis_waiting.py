"""Groups that wait for a step: nothing to train, a step that fills slowly, or nothing to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agrpo.database.writer import Database
from agrpo.instruments.diagnosis import Finding, Severity, Waiting, diagnose, recorded_waiting
from agrpo.queue.run_folder import StepKey
from agrpo.stages.recorder import record_once
from tests.database.synthetic import a_rollout, add_attempt, add_group, add_plan, add_scores, new_run
from tests.instruments.made_points import SETTINGS, history, rules, with_settings

OWN_REWARD = {**SETTINGS, "rewards": [{"name": "my:reward"}]}
EQUAL = {"correct": [1.0, 1.0]}


def waiting(num_groups: int = 1744, filled: int = 0, **more: Any) -> Waiting:
    known = {"equal_share": 1.0, "reward_mean": 1.0, "failed_share": 0.0, "places": 32}
    return Waiting(num_groups=num_groups, places_filled=filled, **{**known, **more})


def told(groups: Waiting, settings: dict[str, Any] = OWN_REWARD) -> Finding:
    (finding,) = diagnose([], settings, waiting=groups)
    return finding


def test_many_groups_of_which_none_can_be_trained_are_said_before_the_first_step():
    assert told(waiting()) == Finding(
        rule="agrpo/nothing-to-train",
        severity=Severity.WARNING,
        title="Nothing to train: no group fills a place of the step",
        reading="1,744 groups are scored and none of them can be trained: the step's 32 places cannot be filled. In 100 % of the "
        "groups all rollouts earn the same reward; the mean reward is 1.00.",
        change="Read rollouts: is the reward constant, or too coarse ([[rewards]])? Are the prompts all too easy or too hard "
        "([prompts])?",
    )
    assert told(waiting(160)).rule == "agrpo/nothing-to-train"
    assert told(waiting(159)).rule == "agrpo/slow-filling"


def test_a_step_that_takes_many_groups_for_few_places_fills_slowly():
    finding = told(waiting(136, filled=27, equal_share=0.8))
    assert (finding.rule, finding.severity) == ("agrpo/slow-filling", Severity.NOTE)
    assert finding.reading == (
        "136 groups are scored and fill 27 of the step's 32 places. In 80 % of the groups all rollouts earn the same reward; the "
        "mean reward is 1.00."
    )
    assert told(waiting(135, filled=27)).rule == "agrpo/too-few-steps"


def test_filters_that_leave_most_groups_out_are_the_cause():
    finding = told(waiting(equal_share=0.0, left_out_share=0.75, reward_mean=0.5))
    assert finding.reading.endswith(
        "None was left out for equal rewards; the mean reward is 0.50. The run's filters leave out 75 % of the groups."
    )
    assert finding.change.startswith("Loosen the filters ([[filters]])")
    assert not told(waiting(left_out_share=0.25)).change.startswith("Loosen")


def test_groups_that_fill_a_step_or_are_few_say_nothing():
    assert told(waiting(5000, filled=32)).rule == "agrpo/too-few-steps"
    assert told(waiting(63)).rule == "agrpo/too-few-steps"


def test_the_cause_decides_what_to_change():
    cold = with_settings(engine={"temperature": 0.01})
    assert told(waiting(reward_mean=0.4), cold).change.startswith("Raise engine.temperature (now 0.01): near 0")
    assert told(waiting(reward_mean=0.95), SETTINGS).change.startswith("The prompts are solved: stop here")
    assert told(waiting(reward_mean=0.05), SETTINGS).change.startswith("Read rollouts first: does the reward find")
    assert told(waiting(reward_mean=0.5), SETTINGS).change.startswith("Read rollouts: is the reward constant")


def test_groups_that_earn_far_less_than_the_steps_before_are_of_a_broken_policy():
    points = history({"reward": 0.36}, steps=3)
    (finding,) = diagnose(points, SETTINGS, waiting=waiting(reward_mean=0.0))
    assert finding.reading.endswith("the mean reward is 0.00. Groups of the last steps earned 0.36.")
    assert finding.change.startswith("Lower optimizer.learning_rate (now 1e-06) and start again")
    (finding,) = diagnose(points, SETTINGS, waiting=waiting(reward_mean=0.12))
    assert "learning_rate" not in finding.change


def test_rollouts_that_failed_are_told_and_are_the_cause_where_most_did():
    finding = told(waiting(equal_share=0.0, reward_mean=None, failed_share=1.0))
    assert finding.reading.endswith(
        "None was left out for equal rewards; no rollout has a reward. 100 % of the rollouts failed."
    )
    assert finding.change.startswith("See what fails: agrpo questions RUN failed_rewards")


def test_a_cause_that_the_steps_tell_is_not_told_again_of_the_step_to_come():
    top = {"frac_zero_std_groups": 0.9, "reward_zero_std_groups": 0.98, "reward": 0.97}
    flow = {"perf/step_s": 4.0, "perf/rollout_wait_s": 3.0, "rollout/queue_size": 0.0}
    points = history({**top, **flow})
    assert rules(diagnose(points, SETTINGS, waiting=waiting(1000, filled=20))) == ["A-358", "A-113"]
    assert rules(diagnose(points, SETTINGS, waiting=waiting(1000))) == ["agrpo/nothing-to-train", "A-358"]


def test_the_database_tells_which_groups_wait(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    for ticket in range(6):
        add_group(folder, ticket, [a_rollout(0, [5, 1]), a_rollout(1, [4, 1])])
        add_scores(
            folder, ticket, {0: None, 1: {"correct": [1.0, None]}, 5: {"correct": [1.0, 0.0]}}.get(ticket, EQUAL)
        )
    for ticket, filtered in ((6, True), (7, False)):
        add_group(folder, ticket, [], refusal="not asked", filtered=filtered)
        add_scores(folder, ticket)
    add_plan(folder, StepKey(0, 1), [0])
    record_once(folder, Database(folder.database))
    settings = {"step": {"groups": 4, "zero_variance": None}, "async": {"max_staleness": 2}}
    expected = {"num_groups": 5, "equal_share": 0.6, "failed_share": 0.1, "places": 4}
    assert recorded_waiting(folder, settings) == Waiting(reward_mean=8 / 9, places_filled=1, **expected)
    dropping = {**settings, "step": {"groups": 4, "zero_variance": "drop"}}
    assert recorded_waiting(folder, dropping) == Waiting(reward_mean=8 / 9, places_filled=4, **expected)
