"""Going back to a step on purpose, and a replay whose weights are others: with real stages over a real folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from agrpo.errors import ConfigError, ReplayMismatch, StoreLostWrites
from agrpo.queue.checkpoints import lineage_checkpoints, manifest_of
from agrpo.queue.lineage import lineage
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.queue.versions import newest_version
from agrpo.records.arrow import group_from_arrow
from agrpo.records.documents import dump
from agrpo.records.progress import DropReason, Plan
from agrpo.runs import go_back
from agrpo.stages.learner import _Learner
from agrpo.stages.standing import Standing
from agrpo.stages.succession import begin_attempt
from tests.stages.walk import LOCKSTEP, Walk, walk

Begin = Callable[..., RunFolder]


def plans(folder: RunFolder) -> list[Plan]:
    """Of the history, in order."""
    found = [
        folder.plan(StepKey(segment.attempt, step))
        for segment in lineage(folder.bases())
        for step in folder.done_steps(segment.attempt)
        if segment.first <= step and (segment.last is None or step <= segment.last)
    ]
    return [plan for plan in found if plan is not None]


def prompts_trained(folder: RunFolder) -> Counter[tuple[int, int]]:
    """Epoch and row of every prompt the history trained."""
    groups = [group_from_arrow(folder.groups.read(ticket)) for plan in plans(folder) for ticket in plan.tickets]
    return Counter((group.prompt.epoch, group.prompt.row_index) for group in groups)


@pytest.mark.parametrize("tables", [LOCKSTEP, {"asynchronous": {"max_staleness": 2}}], ids=["lockstep", "async"])
def test_a_run_goes_back_and_every_prompt_of_its_future_is_asked_again(begin: Begin, tables: dict):
    folder = begin(stop={"max_steps": 5}, **tables)
    walk(folder)
    go_back(folder, 2)
    walk(folder)
    assert [plan.step for plan in plans(folder)] == [1, 2, 3, 4, 5]
    assert [plan.attempt for plan in plans(folder)] == [0, 0, 1, 1, 1]
    base = folder.bases()[1]
    assert (base.base_step, base.adopted_through, base.rewind) == (2, 2, 0)
    assert base.reissue
    consumed = Counter(ticket for plan in plans(folder) for ticket in plan.consumed)
    assert set(consumed.values()) == {1}
    assert set(base.reissue) <= {drop.ticket for plan in plans(folder) for drop in plan.drops}
    trained = prompts_trained(folder)
    assert set(trained.values()) == {1}
    versions = [version for attempt in (0, 1) for version in folder.versions(attempt)]
    assert len(versions) == len(set(versions))


def test_a_run_that_goes_back_in_lockstep_samples_under_the_weights_it_went_back_to(begin: Begin):
    folder = begin(stop={"max_steps": 4}, **LOCKSTEP)
    walk(folder)
    go_back(folder, 1)
    walk(folder)
    for plan in plans(folder):
        for ticket in plan.tickets:
            group = group_from_arrow(folder.groups.read(ticket))
            assert group.model_ordinal == plan.step - 1
            assert group.model_attempt in (0, plan.attempt)


@pytest.mark.spec("K07")
def test_nothing_of_the_future_left_behind_is_trained(begin: Begin):
    folder = begin(stop={"max_steps": 9}, asynchronous={"max_staleness": 2}, checkpoint={"every_seconds": 0})
    walk(folder)
    before = set(folder.groups.numbers())
    for name in folder.filesystem.list("checkpoints"):
        if not name.startswith("00000009"):
            folder.filesystem.delete(f"checkpoints/{name}")
    go_back(folder, 5)
    walk(folder)
    base = folder.bases()[1]
    sixth = next(plan for plan in plans(folder) if plan.step == 6)
    assert sixth.attempt == 1
    assert all(ticket not in before for ticket in sixth.tickets)
    for ticket in sixth.tickets:
        assert group_from_arrow(folder.groups.read(ticket)).model_step <= 5
    reasons = {drop.ticket: drop.reason for plan in plans(folder) for drop in plan.drops}
    assert all(reasons[ticket] is DropReason.REISSUED for ticket in base.reissue)
    assert [plan.step for plan in plans(folder)] == list(range(1, 10))


def test_a_run_may_go_back_twice(begin: Begin):
    folder = begin(stop={"max_steps": 4}, asynchronous={"max_staleness": 1})
    walk(folder)
    for step in (3, 1):
        go_back(folder, step)
        walk(folder)
    assert [plan.attempt for plan in plans(folder)] == [0, 2, 2, 2]
    assert set(Counter(ticket for plan in plans(folder) for ticket in plan.consumed).values()) == {1}
    assert set(prompts_trained(folder).values()) == {1}
    assert newest_version(folder).attempt == 2


def test_a_wish_to_go_back_is_fulfilled_by_whoever_comes_next_and_once(begin: Begin):
    folder = begin(stop={"max_steps": 3}, **LOCKSTEP)
    walk(folder)
    go_back(folder, 1)
    folder.write_attempt(replace(folder.attempt(0), attempt=1))  # it died before its base
    walk(folder)
    walk(folder)
    assert {attempt: base.rewind for attempt, base in folder.bases().items() if not base.void} == {
        0: None,
        2: 0,
        3: None,
    }
    assert [plan.attempt for plan in plans(folder)] == [0, 2, 2]


@pytest.mark.parametrize("step", [-1, 4])
def test_a_step_that_was_not_done_is_refused(begin: Begin, step: int):
    folder = begin(stop={"max_steps": 3}, **LOCKSTEP)
    walk(folder)
    with pytest.raises(ConfigError, match=rf"--from-step {step}: .* has done steps 1 to 3; choose one of 0 to 3"):
        go_back(folder, step)
    assert folder.rewinds() == []


def differ_at(folder: RunFolder, step: int) -> None:
    """Record another digest for a step, as another kind of machine would have."""
    done = folder.done(StepKey(0, step))
    digests = {name: "0" * 32 for name in done.digests}
    folder.filesystem.put(
        f"steps/000000/{step:08d}.done.json", dump(replace(done, digest="0" * 32, digests=digests)), exclusive=False
    )
    for name in folder.filesystem.list("checkpoints"):
        if int(name.split("-")[0]) >= step:
            folder.filesystem.delete(f"checkpoints/{name}")
    folder.filesystem.delete("hint")


def test_a_replay_that_differs_goes_on_from_the_step_before_where_that_is_asked(begin: Begin):
    folder = begin(stop={"max_steps": 4}, resume={"on_difference": "continue"}, asynchronous={"max_staleness": 1})
    walk(folder)
    recorded = {plan.step: plan.tickets for plan in plans(folder)}
    differ_at(folder, 3)
    walk(folder)
    base = folder.bases()[1]
    assert (base.base_step, base.adopted_through) == (2, 4)
    assert {plan.step: plan.tickets for plan in plans(folder)} == recorded
    assert [(plan.attempt, plan.adopted_from, plan.publish) for plan in plans(folder)][2:] == [(1, 0, None), (1, 0, 5)]
    newest = newest_version(folder)
    assert (newest.version, newest.step, newest.ordinal) == (5, 4, 4)


def test_a_replay_that_differs_stops_where_going_on_is_not_asked(begin: Begin):
    folder = begin(stop={"max_steps": 3}, asynchronous={"max_staleness": 1})
    walk(folder)
    differ_at(folder, 2)
    with pytest.raises(ReplayMismatch, match="step 2 replayed differently"):
        Walk(folder).start("learner").join()
    assert folder.bases().keys() == {0}


def test_a_standing_comes_out_of_a_checkpoint_as_it_went_in():
    standing = Standing(step=4, version=7, next_version=8, ordinal=5, digest="d", num_replaced=3, num_void=2)
    standing.consumed.add(0)
    standing.consumed.add(5)
    found = Standing.at_checkpoint(standing.state(1, 10, 20, next_ticket=9), None)
    assert (found.step, found.version, found.next_version, found.ordinal) == (4, 7, 8, 5)
    assert (found.consumed.floor, found.consumed.above) == (1, {5})
    assert (found.num_replaced, found.num_void, found.digest) == (3, 2, "d")


@pytest.mark.parametrize("stage", ["learner", "generator"])
def test_a_run_that_is_to_repeat_bit_for_bit_goes_on_only_on_the_kind_of_machine_it_began_on(begin: Begin, stage: str):
    folder = begin(stop={"max_steps": 1}, **LOCKSTEP)
    walk(folder)
    elsewhere = replace(folder.attempt(0), machine={**folder.attempt(0).machine, "cpu capability": "NEON"})
    folder.filesystem.put("attempts/000000.json", dump(elsewhere), exclusive=False)
    folder.filesystem.delete("hint")
    engines = folder.engines()
    with pytest.raises(ReplayMismatch, match="another kind of machine: cpu capability: NEON, here"):
        Walk(folder).start(stage).join()
    assert folder.attempts() == [0]
    assert folder.engines() == engines, "it was refused before it acknowledged anything"


def test_a_wish_is_written_after_the_word_that_the_run_is_over_is_taken_back(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    folder = begin(stop={"max_steps": 1}, **LOCKSTEP)
    walk(folder)
    seen: list[bool] = []
    write = RunFolder.write_rewind
    monkeypatch.setattr(
        RunFolder, "write_rewind", lambda self, wish: (seen.append(self.hint().finished), write(self, wish))[1]
    )
    go_back(folder, 0)
    assert seen == [False]


@pytest.mark.parametrize("back", [2, 3])
def test_a_run_goes_back_among_steps_that_were_carried_out_again(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, back: int
):
    """The versions of the weights that those steps replaced are no longer on the disk, and never were the history's."""
    with monkeypatch.context() as other_arithmetic:
        clip = torch.nn.utils.clip_grad_norm_
        other_arithmetic.setattr(torch.nn.utils, "clip_grad_norm_", lambda weights, norm: clip(weights, norm / 2))
        folder = begin(
            stop={"max_steps": 5, "stall_seconds": 20},
            resume={"on_difference": "continue"},
            asynchronous={"max_staleness": 1},
        )
        walk(folder)
    for name in folder.filesystem.list("checkpoints"):
        if not name.startswith("00000000"):
            folder.filesystem.delete(f"checkpoints/{name}")
    folder.filesystem.delete("hint")
    walk(folder)
    assert folder.bases()[1].base_step == 0
    go_back(folder, back)
    walk(folder)
    ready = folder.version(2, folder.versions(2)[0])
    assert (ready.step, ready.digest) == (back, folder.done(StepKey(1, back)).digest)
    assert ready.version == 7
    assert ready.ordinal == back
    assert [plan.attempt for plan in plans(folder)] == [1] * back + [2] * (5 - back)
    assert [plan.publish for plan in plans(folder)][back:] == list(range(8, 13 - back))
    assert set(prompts_trained(folder).values()) == {1}


def test_groups_that_belong_to_the_history_are_trained_after_going_back_and_not_asked_again(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    state = _Learner._state

    def state_when_others_are_ahead(learner: _Learner):
        deadline = time.monotonic() + 5.0
        while learner.folder.claims.next_free() < 2 * learner.standing.step + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return state(learner)

    folder = begin(stop={"max_steps": 4}, asynchronous={"max_staleness": 2})
    with monkeypatch.context() as slow:
        slow.setattr(_Learner, "_state", state_when_others_are_ahead)
        walk(folder)
    known = manifest_of(folder, lineage_checkpoints(folder, 3)[0]).state.next_ticket
    groups = {t: group_from_arrow(folder.groups.read(t)) for t in folder.groups.numbers()}
    consumed = {ticket for plan in plans(folder)[:3] for ticket in plan.consumed}
    kept = {t for t, g in groups.items() if t not in consumed and t < known and g.model_step <= 3}
    assert kept
    go_back(folder, 3)
    walk(folder)
    base = folder.bases()[1]
    assert kept.isdisjoint(base.reissue)
    last = plans(folder)[3]
    assert last.attempt == 1
    assert kept.intersection(last.tickets)


def test_an_attempt_that_lost_its_base_is_not_taken_for_one_that_did_nothing(begin: Begin):
    folder = begin(stop={"max_steps": 2}, **LOCKSTEP)
    walk(folder)
    folder.filesystem.delete("bases/000000.json")
    with pytest.raises(StoreLostWrites, match=r"attempt 0 has done steps .*bases/000000.json is gone"):
        begin_attempt(RunFolder.open(folder.url))
    assert RunFolder.open(folder.url).bases() == {}


def test_an_attempt_whose_record_is_lost_gives_its_number_to_nobody(begin: Begin):
    folder = begin(stop={"max_steps": 1}, **LOCKSTEP)
    walk(folder)
    folder.filesystem.delete("attempts/000000.json")
    assert begin_attempt(RunFolder.open(folder.url)).attempt == 1
