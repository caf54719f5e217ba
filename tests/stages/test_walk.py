"""Whole runs in one process: the walk of a group from prompt to published weights, and on after an end."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.errors import ConfigError, ReplayMismatch, RewardError
from agrpo.queue.run_folder import StepKey
from agrpo.queue.versions import newest_version
from agrpo.records.arrow import group_from_arrow, scored_from_arrow
from agrpo.records.documents import dump
from agrpo.records.progress import DropReason
from agrpo.runs import check_unchanged
from agrpo.stages.keeping import Keeper
from agrpo.weights.filesystem import check_weights
from tests.stages.walk import LOCKSTEP, Walk, dones, walk


@pytest.mark.spec("A-002", "A-088", "A-091", "A-092", "K11")
def test_lockstep_trains_every_group_under_the_version_that_sampled_it(begin):
    folder = begin(**LOCKSTEP)
    walk(folder)
    found = dones(folder)
    assert [done.step for done in found] == [1, 2, 3, 4]
    assert {sample.staleness for done in found for sample in done.samples} == {0}
    assert all(done.metrics["sample/dropped_stale_count"] == 0 for done in found)
    for step in range(1, 5):
        plan = folder.plan(StepKey(0, step))
        versions = {scored_from_arrow(folder.scored.read(ticket)).model_version for ticket in plan.tickets}
        assert versions == {step - 1}


def test_two_lockstep_runs_of_one_seed_end_in_the_same_weights(begin):
    digests = []
    for name in ("first", "second"):
        folder = begin(name, **LOCKSTEP)
        walk(folder)
        digests.append([done.digest for done in dones(folder)])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 4


@pytest.mark.spec("A-067", "A-094", "A-296")
def test_asynchronous_consumes_each_ticket_once_and_stays_within_the_staleness(begin):
    folder = begin(asynchronous={"max_staleness": 2}, stop={"max_steps": 6})
    walk(folder)
    plans = [folder.plan(StepKey(0, step)) for step in range(1, 7)]
    consumed = [ticket for plan in plans for ticket in plan.consumed]
    assert len(consumed) == len(set(consumed))
    assert max(sample.staleness for plan in plans for sample in plan.samples) <= 2
    for done in dones(folder):
        if done.metrics["sample/staleness_max"] == 0:
            assert done.metrics["sampling/sampling_logp_difference/max"] < 1e-4


@pytest.mark.spec("A-291", "A-293", "A-300", "K23")
def test_logged_measures_are_those_of_the_recorded_rows(begin):
    folder = begin(asynchronous={"max_staleness": 1})
    walk(folder)
    for done in dones(folder):
        plan = folder.plan(StepKey(0, done.step))
        scored = [scored_from_arrow(folder.scored.read(ticket)) for ticket in plan.consumed]
        rewards = [reward for group in scored for reward in group.rewards if not math.isnan(reward)]
        assert done.metrics["reward"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-12)
        tokens = sum(sample.num_trained_tokens for sample in done.samples)
        entropy = sum(sample.entropy_mean * sample.num_trained_tokens for sample in done.samples) / tokens
        assert done.metrics["entropy"] == pytest.approx(entropy, abs=1e-9)
        assert done.metrics["batch/trained_tokens_per_step"] == tokens == plan.num_trained_tokens


@pytest.mark.spec("K35")
def test_every_request_has_a_seed_of_its_own_that_a_second_run_repeats(begin):
    seeds = []
    for name in ("first", "second"):
        folder = begin(name, stop={"max_steps": 1}, **LOCKSTEP)
        walk(folder)
        groups = [group_from_arrow(folder.groups.read(ticket)) for ticket in range(2)]
        seeds.append([rollout.seed for group in groups for rollout in group.rollouts])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 8


def test_a_run_stopped_midway_goes_on_to_the_weights_it_would_have_had(begin):
    whole = begin("whole", **LOCKSTEP)
    walk(whole)
    folder = begin("halved", **LOCKSTEP)
    first = Walk(folder).start("generator", "scorer", "learner")
    first.until(lambda: len(folder.done_steps(0)) >= 2)
    first.stop.set()
    for thread in first.threads:
        thread.join(60)
    walk(folder)
    steps = {done.step: done.digest for attempt in (0, 1) for done in dones(folder, attempt)}
    assert steps == {done.step: done.digest for done in dones(whole)}


def test_a_plan_without_done_is_adopted_and_carried_out_once(begin):
    folder = begin(stop={"max_steps": 2}, **LOCKSTEP)
    walk(folder)
    digest = dones(folder)[1].digest
    folder.filesystem.delete("steps/000000/00000002.done.json")
    folder.filesystem.delete("versions/000000/00000002.json")
    for name in folder.filesystem.list("checkpoints"):
        if name.startswith("00000002"):
            folder.filesystem.delete(f"checkpoints/{name}")
    folder.filesystem.delete("hint")
    walk(folder)
    (adopted,) = dones(folder, 1)
    assert (adopted.step, adopted.digest) == (2, digest)
    assert folder.plan(StepKey(1, 2)).adopted_from == 0


def test_a_replay_that_differs_stops_and_says_where(begin):
    folder = begin(stop={"max_steps": 2}, **LOCKSTEP)
    walk(folder)
    for name in folder.filesystem.list("checkpoints"):
        if not name.startswith("00000001"):
            folder.filesystem.delete(f"checkpoints/{name}")
    plan = replace(folder.plan(StepKey(0, 2)), learning_rate=0.5)
    folder.filesystem.put("steps/000000/00000002.plan.json", dump(plan), exclusive=False)
    folder.filesystem.delete("hint")
    with pytest.raises(ReplayMismatch, match=r"step 2 replayed differently in \d+ of \d+ tensors"):
        Walk(folder).start("learner").join()


@pytest.mark.spec("K28")
def test_a_step_with_nothing_to_train_leaves_the_weights_as_they_are(begin):
    folder = begin(reward="always_one", step={"zero_variance": "drop"}, stop={"max_steps": 2})
    walk(folder)
    first, second = dones(folder)
    assert first.empty
    assert first.digest == second.digest
    assert "loss" not in first.metrics


@pytest.mark.spec("K19", "K26")
def test_a_run_in_which_no_group_can_be_trained_ends_with_the_reasons(begin):
    folder = begin(reward="never_any", asynchronous={"max_staleness": 1})
    with pytest.raises(RewardError, match="no group could be trained in two passes over 12 prompts: 24 too_few_scores"):
        walk(folder)


@pytest.mark.spec("A-266", "A-267", "A-127")
def test_epochs_count_consumed_prompts_and_the_last_step_may_be_short(begin):
    folder = begin(step={"groups": 5}, stop={"max_steps": None, "epochs": 1})
    walk(folder)
    plans = [folder.plan(StepKey(0, step)) for step in folder.done_steps(0)]
    assert sorted(ticket for plan in plans for ticket in plan.consumed) == list(range(12))
    assert dones(folder)[-1].num_prompts == 12


def test_documents_of_a_run_are_readable_json(begin):
    folder = begin(stop={"max_steps": 1}, **LOCKSTEP)
    walk(folder)
    plan = folder.plan(StepKey(0, 1))
    assert json.loads(dump(plan))["schema"] == "Plan"
    assert folder.document()["settings"]["tree"]["async"]["max_staleness"] == 0


def test_a_run_stopped_before_its_first_plan_goes_on(begin):
    folder = begin(stop={"max_steps": 1}, **LOCKSTEP)
    first = Walk(folder).start("learner")
    first.until(lambda: bool(folder.versions(0)))
    first.stop.set()
    first.threads[0].join(60)
    walk(folder)
    assert [done.step for done in dones(folder, 1)] == [1]
    assert newest_version(folder).step == 1


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_weights_of_the_newest_version_that_are_lost_are_written_again(begin, harm: str):
    folder = begin(stop={"max_steps": 2}, **LOCKSTEP)
    walk(folder)
    newest = newest_version(folder)
    file = Path(folder.url, newest.folder, "model.safetensors")
    if harm == "damaged":
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    else:
        folder.filesystem.delete(newest.folder)
    walk(folder)
    check_weights(folder.filesystem.local_folder(newest.folder), newest.digest)


def test_a_prompt_too_long_for_the_model_is_refused_alone(begin, prompts: Path, tmp_path: Path):
    rows = prompts.read_text().splitlines()
    long = {"prompt": [{"role": "user", "content": "1 + " * 4000}]}
    file = tmp_path / "with_a_long_one.jsonl"
    file.write_text("\n".join([*rows[:3], json.dumps(long)]))
    folder = begin(file=file, stop={"max_steps": None, "epochs": 1}, **LOCKSTEP)
    walk(folder)
    drops = [drop for step in folder.done_steps(0) for drop in folder.plan(StepKey(0, step)).drops]
    assert [drop.reason for drop in drops] == [DropReason.REFUSED_PROMPT]
    assert "leaves no room for a completion" in scored_from_arrow(folder.scored.read(drops[0].ticket)).refusal


@pytest.mark.spec("A-348")
def test_the_time_of_a_step_holds_the_publish_before_it(begin, monkeypatch: pytest.MonkeyPatch):
    publish = Keeper.publish

    def publish_late(keeper: Keeper, version: int, step: int, *, ordinal: int) -> None:
        time.sleep(0.5)
        publish(keeper, version, step, ordinal=ordinal)

    monkeypatch.setattr(Keeper, "publish", publish_late)
    folder = begin(stop={"max_steps": 3}, **LOCKSTEP)
    walk(folder)
    assert all(done.metrics["perf/step_s"] >= 0.5 for done in dones(folder)[1:])


def test_a_run_whose_prompts_have_changed_is_not_resumed(begin, prompts: Path, tmp_path: Path):
    file = tmp_path / "changing.jsonl"
    file.write_text(prompts.read_text())
    folder = begin(file=file)
    check_unchanged(folder)
    file.write_text(prompts.read_text().replace("0+2", "0+3"))
    with pytest.raises(ConfigError, match="began with other files than are there now; changed: prompts"):
        check_unchanged(folder)
