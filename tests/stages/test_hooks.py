"""Rollout loops of the user's in whole small runs: what each hook sees, and what becomes of what it gives."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from agrpo.audit.replaying import replay
from agrpo.audit.verifying import verify
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.errors import ConfigError, DeadlineExceeded, HookError, RecordError
from agrpo.queue.history import done_steps
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.arrow import group_from_arrow, scored_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import DropReason, Plan
from agrpo.runs import go_back
from agrpo.stages.recorder import record_once
from agrpo.whatif.question import ask_advantage
from tests.stages import loops
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged
from tests.stages.walk import LOCKSTEP, Walk, dones, walk

DOCS = Path(__file__).parents[2] / "docs"
CLIP = {"loss": {"name": "clip"}}


def loop(name: str, **settings: Any) -> dict[str, Any]:
    return {"rollout_loop": {"path": f"tests.stages.loops:{name}", "settings": settings}}


def plans(folder: RunFolder) -> list[Plan]:
    found = [folder.plan(StepKey(0, step)) for step in folder.done_steps(0)]
    return [plan for plan in found if plan is not None]


def group_of(folder: RunFolder, ticket: int) -> RolloutGroup:
    return group_from_arrow(folder.groups.demand(ticket))


def assert_books_balance(folder: RunFolder) -> None:
    record_once(folder, Database(folder.database))
    assert_sql_says_what_was_logged(folder)
    assert verify(folder, deep=True).findings == []


def test_a_loop_that_overrides_nothing_changes_no_bit(begin):
    without, with_one = (
        begin(name, **LOCKSTEP, **tables, stop={"max_steps": 2})
        for name, tables in {"without": {}, "with": loop("Plain")}.items()
    )
    for folder in (without, with_one):
        walk(folder)
    assert [done.digest for done in dones(with_one)] == [done.digest for done in dones(without)]


@pytest.mark.spec("A-217", "A-222", "A-223", "A-226")
def test_rollouts_of_a_generate_one_are_trained_and_their_own_reward_is_added(begin):
    folder = begin(**LOCKSTEP, **CLIP, **loop("Twice"), reward="said", stop={"max_steps": 2})
    walk(folder)
    for ticket in plans(folder)[0].tickets:
        group, scored = group_of(folder, ticket), scored_from_arrow(folder.scored.demand(ticket))
        judged = [2000.0 + len(rollout.completion_ids) for rollout in group.rollouts]
        assert scored.scores[0].values == judged
        assert [len(rollout.turns) for rollout in group.rollouts] == [2] * 4
        assert [rollout.index for rollout in group.rollouts] == [0, 1, 2, 3]
        brought = [float(len(rollout.turns[0].output_ids)) for rollout in group.rollouts]
        assert group.rollout_rewards == brought
        assert scored.rewards == [value + own for value, own in zip(judged, brought, strict=True)]
        assert [len(own) for own in group.completions_sequences] == [1] * 4
    assert all(done.metrics["sampling/sampling_logp_difference/max"] < 1e-4 for done in dones(folder))
    assert_books_balance(folder)


@pytest.mark.slow
def test_a_lockstep_run_with_a_generate_one_repeats_bit_for_bit(begin):
    runs = [begin(name, **LOCKSTEP, **CLIP, **loop("Twice"), stop={"max_steps": 2}) for name in ("one", "two")]
    for folder in runs:
        walk(folder)
    first, second = ([done.digest for done in dones(folder)] for folder in runs)
    assert first == second


def test_an_asynchronous_run_takes_a_generate_one(begin):
    folder = begin(**loop("Twice"), stop={"max_steps": 2})
    walk(folder)
    assert [plan.step for plan in plans(folder)] == [1, 2]
    assert verify(folder, deep=True).findings == []


@pytest.mark.spec("A-230")
def test_masked_tokens_are_context_and_are_not_trained(begin):
    folder = begin(**LOCKSTEP, **loop("FirstTokenUntrained"), stop={"max_steps": 2})
    walk(folder)
    for plan, done in zip(plans(folder), dones(folder), strict=True):
        lengths = {
            (ticket, rollout.index): len(rollout.completion_ids)
            for ticket in plan.tickets
            for rollout in group_of(folder, ticket).rollouts
        }
        trained = {(sample.ticket, sample.rollout_index): sample.num_trained_tokens for sample in done.samples}
        assert trained == {key: length - 1 for key, length in lengths.items() if length > 1}
    assert_books_balance(folder)


@pytest.mark.spec("A-212", "A-213")
def test_a_row_that_the_filter_refuses_is_consumed_and_comes_again(begin):
    loops.CALLED.clear()
    folder = begin(**LOCKSTEP, **loop("EvenRowsThenAll"), step={"groups": 3}, stop={"max_steps": None, "epochs": 2})
    walk(folder)
    asked = [(row, epoch) for row, _, epoch in loops.CALLED]
    assert sorted(asked) == sorted((row, epoch) for row in range(12) for epoch in (0, 1))
    assert all(row["prompt"][0]["content"] == f"{index}+{index + 2} =" for index, row, _ in loops.CALLED)
    drops = {drop.ticket: drop.reason for plan in plans(folder) for drop in plan.drops}
    left_out = {ticket for ticket, reason in drops.items() if reason is DropReason.FILTERED}
    rows = {group_of(folder, ticket).row_index for ticket in left_out}
    assert (len(left_out), max(left_out) < 12, {row % 2 for row in rows}) == (6, True, {1})
    assert sorted(ticket for plan in plans(folder) for ticket in plan.consumed) == list(range(24))
    assert_books_balance(folder)
    filtered = query(folder.database, "SELECT ticket FROM step_groups WHERE drop_reason = 'filtered'")
    assert {*filtered.to_pydict()["ticket"]} == left_out
    (of_the_docs,) = re.findall(r"```sql\n(.*?)```", (DOCS / "hooks.md").read_text("utf-8"), re.DOTALL)
    assert query(folder.database, of_the_docs).to_pylist() == [{"epoch": 0, "num_groups": 6}]


@pytest.mark.spec("A-214")
def test_a_filter_that_leaves_out_a_whole_epoch_stops_the_run(begin):
    folder = begin(**loop("NothingInEpochOne"), stop={"max_steps": 50})
    with pytest.raises(HookError, match="filter_prompt left out all 12 prompts of epoch 1; a run asks one at least"):
        walk(folder)


def test_what_a_filter_left_out_is_asked_once_the_run_has_gone_back(begin, monkeypatch):
    folder = begin(**loop("NothingInEpochOne"), stop={"max_steps": 8})
    with pytest.raises(HookError, match="resume` this run with --from-step and its last step"):
        walk(folder)
    monkeypatch.setattr(loops.NothingInEpochOne, "mended", True)
    go_back(folder, dones(folder)[-1].step)
    walk(folder)
    assert done_steps(folder)[-1].step == 8
    assert verify(folder, deep=True).findings == []


def test_a_token_that_no_model_has_stops_the_learner_with_its_ticket_and_the_run_goes_back(begin, monkeypatch):
    folder = begin(**loop("ChangesLate"), stop={"max_steps": 1})
    told = (
        r"step 1 is to train ticket \d+, of whose rollout \d token \d+ has the id 99999; the model knows 0 to \d+\. .* `agrpo resume` "
        "this run with --from-step 0, which asks the prompt again"
    )
    with pytest.raises(RecordError, match=told):
        walk(folder)
    monkeypatch.setattr(loops.ChangesLate, "mended", True)
    with pytest.raises(RecordError, match=told):  # its plan is written
        walk(folder)
    go_back(folder, 0)
    walk(folder)
    assert done_steps(folder)[-1].step == 1
    assert verify(folder, deep=True).findings == []


@pytest.mark.spec("A-219", "A-237")
def test_advantages_of_the_hook_are_trained_and_dropped_groups_are_computed_too(begin):
    loops.CALLED.clear()
    folder = begin(**loop("Halved"), reward="often_equal", stop={"max_steps": 3})
    walk(folder)
    called = {ticket: rewards for ticket, rewards, _ in loops.CALLED}
    consumed = {ticket for plan in plans(folder) for ticket in plan.consumed}
    dropped = {drop.ticket for plan in plans(folder) for drop in plan.drops}
    assert called.keys() == consumed
    assert dropped, "the reward lets some groups have equal rewards"
    for plan in plans(folder):
        for sample in plan.samples:
            rewards = called[sample.ticket]
            expected = (rewards[sample.rollout_index] - sum(rewards) / len(rewards)) / 2
            assert sample.advantage == pytest.approx(expected, rel=1e-6)
    assert verify(folder, deep=True).findings == []
    assert replay(folder, from_start=True).identical
    with pytest.raises(ConfigError, match="whose compute_advantages a what-if does not ask"):
        ask_advantage(folder, "grpo", [])


@pytest.mark.spec("A-210", "A-215", "A-220", "A-221", "A-236")
def test_hooks_are_called_in_the_documented_order(begin):
    loops.CALLED.clear()
    began = time.monotonic()
    folder = begin(**LOCKSTEP, **loop("Everything"), stop={"max_steps": 1})
    walk(folder)
    names = [name for name, _ in loops.CALLED]
    assert (names[0], names[-1], names.count("setup"), names.count("close")) == ("setup", "close", 1, 1)
    for ticket in (0, 1):
        group = group_of(folder, ticket)
        filtered, advantages = (
            loops.CALLED.index(call) for call in [("filter_prompt", group.row_index), ("compute_advantages", ticket)]
        )
        generated = [place for place, call in enumerate(loops.CALLED) if call == ("generate_one", ticket)]
        assert len(generated) == len(group.rollouts)
        assert filtered < min(generated) <= max(generated) < advantages
        assert (group.group_id, group.model_version, group.row_index in range(12)) == (ticket, 0, True)
        assert began < group.queued_at < time.monotonic()
    assert verify(folder, deep=True).findings == []


@pytest.mark.spec("A-221")
def test_a_loop_is_closed_after_an_error_too(begin):
    loops.CALLED.clear()
    folder = begin(**loop("Everything"), stop={"max_steps": 1, "stall_seconds": 3}, supervision={"stall_seconds": 2})
    with pytest.raises(DeadlineExceeded):
        Walk(folder).start("generator").join()  # without a learner there are no weights to ask
    assert loops.CALLED == [("setup", None), ("close", None)]
