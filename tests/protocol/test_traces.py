"""Traces on which a first text of the protocol failed, replayed against the real learner. Numbers as in `rules.py`'s order.

Two of them do not exist here: a learner writes no record of drops outside a plan, and publishes before its next step begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from agrpo.errors import Retired
from agrpo.queue.archive.archiving import Archiver
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.queue.versions import newest_version
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.progress import DropReason, Hint
from agrpo.runs import go_back
from agrpo.stages import run_ahead
from tests.protocol.learners import GROUPS, Zombie, claim, consumed, fill, learn, outcome, write_group
from tests.protocol.stopping import Killed, Place, Side, Stores, Writer
from tests.stages.walk import Walk

Begin = Callable[..., RunFolder]


def killed(folder: RunFolder, stores: Stores, kind: str, key: str, side: Side = Side.BEFORE) -> RunFolder:
    with pytest.raises(Killed, match="killed"):
        learn(folder, stores, Writer(killed_at=Place(kind, key, side)))
    return folder


def test_a_late_base_is_refused_and_the_bases_stay_one_chain(begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory())
    first = Zombie(folder, stores, Place("put", "bases/000000.json", Side.BEFORE))
    second = Zombie(folder, stores, Place("put", "attempts/000001.json", Side.AFTER))
    learn(folder, stores)
    finished = outcome(folder)
    assert isinstance(first.let_go(), Retired)
    assert isinstance(second.let_go(), Retired)
    assert [folder.bases()[attempt].void for attempt in range(3)] == [True, True, False]
    assert (folder.versions(0), folder.versions(1), folder.versions(2)) == ([], [], [0, 1, 2, 3])
    assert outcome(folder) == finished


@pytest.mark.parametrize("key", ["bases/000000.json", "versions/000000/00000000.json"])
def test_a_run_that_died_before_its_first_version_begins_again(key: str, begin_in_memory: Begin, stores: Stores):
    folder = killed(fill(begin_in_memory()), stores, "put", key)
    learn(folder, stores)
    assert folder.versions(1)[:1] == [0]
    assert consumed(folder) == list(range(6))


def test_a_half_done_plan_outlives_the_learner_that_adopted_it(begin_in_memory: Begin, stores: Stores):
    folder = killed(fill(begin_in_memory()), stores, "put", "steps/000000/00000002.done.json")
    killed(folder, stores, "put", "bases/000001.json", Side.AFTER)
    learn(folder, stores)
    plan, written = folder.plan(StepKey(2, 2)), folder.plan(StepKey(0, 2))
    assert plan is not None and written is not None
    assert (plan.adopted_from, plan.samples, plan.rows) == (0, written.samples, written.rows)
    assert folder.done_steps(2) == [2, 3]
    assert consumed(folder) == list(range(6))


def test_a_drop_that_no_plan_holds_is_made_again_and_counted_once(begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory(step={"groups": GROUPS, "zero_variance": "refill"}), groups=GROUPS)
    write_group(folder, 2, version=1, rewards=(1.0, 1.0))
    _killed_once(folder, stores, lambda hint: hint.dropped == 1)
    assert consumed(folder) == [0, 1]
    for ticket, version in ((3, 1), (4, 1), (5, 2), (6, 2)):
        write_group(folder, ticket, version=version)
    learn(folder, stores)
    assert outcome(folder).trained == [[0, 1], [3, 4], [5, 6]]
    plan = folder.plan(StepKey(1, 2))
    assert plan is not None
    assert [(drop.ticket, drop.reason) for drop in plan.drops] == [(2, DropReason.EQUAL_REWARDS)]
    assert sorted(consumed(folder)) == list(range(7))


def _killed_once(folder: RunFolder, stores: Stores, reached: Callable[[Hint], bool]) -> None:
    """A learner that waits, and dies once it has said so much."""
    writer, errors = Writer(), []

    def run() -> None:
        try:
            learn(folder, stores, writer)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    Walk(folder).until(lambda: bool(errors) or ((hint := folder.hint()) is not None and reached(hint)))
    writer.dead = True
    thread.join(60)
    assert [type(error) for error in errors] == [Killed]


def test_a_zombies_late_word_is_said_again_over(
    begin_in_memory: Begin, stores: Stores, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_ahead, "AGAIN_SECONDS", 0.1)
    folder = fill(begin_in_memory(), groups=GROUPS)
    late = Hint(limit_ticket=0, dropped=0, floor=0, finished=False, written_at=1.0)

    def said_again(hint: Hint) -> bool:
        """Lays the late word over the learner's own once, and waits until it is gone."""
        if hint.floor == GROUPS and not spoken:
            spoken.append(hint)
            folder.write_hint(late)
            return False
        return bool(spoken) and hint != late and hint.floor == GROUPS

    spoken: list[Hint] = []
    _killed_once(folder, stores, said_again)
    assert len(spoken) == 1


def test_a_version_that_an_older_step_owes_is_published_by_whoever_comes(begin_in_memory: Begin, stores: Stores):
    folder = fill(begin_in_memory(asynchronous={"max_staleness": 0, "weight_sync_steps": 2}), per_version=2 * GROUPS)
    killed(folder, stores, "put", "versions/000000/00000001.json")
    killed(folder, stores, "put", "bases/000001.json", Side.AFTER)
    learn(folder, stores)
    assert [(ready[0], ready[1]) for ready in outcome(folder).versions] == [(0, 0), (1, 2)]
    assert folder.versions(2) == [1]


def rewound(folder: RunFolder, stores: Stores, step: int) -> RunFolder:
    """A finished run of three steps that is to go back."""
    learn(fill(folder, attempt=0), stores)
    go_back(folder, step)
    return folder


def test_numbers_of_versions_are_never_given_twice(begin_in_memory: Begin, stores: Stores):
    folder = rewound(begin_in_memory(), stores, 2)
    killed(folder, stores, "put", "bases/000001.json", Side.AFTER)
    learn(folder, stores)
    assert (folder.versions(0), folder.versions(1), folder.versions(2)) == ([0, 1, 2, 3], [], [4])
    newest = newest_version(folder)
    assert newest is not None
    assert (newest.version, newest.step, newest.ordinal) == (4, 3, 3)


def test_a_rewinder_that_dies_before_its_base_leaves_the_wish(begin_in_memory: Begin, stores: Stores):
    folder = rewound(begin_in_memory(), stores, 2)
    killed(folder, stores, "put", "bases/000001.json")
    learn(folder, stores)
    base = folder.bases()[2]
    assert (base.parent, base.base_step, base.rewind) == (0, 2, 0)
    assert consumed(folder) == list(range(6))


def test_numbers_and_ordinals_after_a_replay_that_differs(begin_in_memory: Begin, stores: Stores):
    folder = begin_in_memory(resume={"on_difference": "continue"})
    killed(fill(folder), stores, "put_folder", "checkpoints/00000002-000000")
    done = folder.done(StepKey(0, 2))
    assert done is not None
    folder.filesystem.delete("steps/000000/00000002.done.json")
    folder.write_done(replace(done, digest="f" * 32, digests=dict.fromkeys(done.digests, "f" * 32)))
    killed(folder, stores, "put", "bases/000001.json", Side.AFTER)
    learn(folder, stores)
    base = folder.bases()[2]
    assert (folder.bases()[1].base_step, base.base_step, base.adopted_through) == (1, 1, 2)
    assert (folder.versions(0), folder.versions(1), folder.versions(2)) == ([0, 1, 2], [], [3, 4])
    ordinals = [plan.ordinal for step in (2, 3) if (plan := folder.plan(StepKey(2, step)))]
    assert ordinals == [2, 3]
    assert consumed(folder) == list(range(6))


def test_prompts_given_out_again_are_trained_once_whoever_writes_late(begin_in_memory: Begin, stores: Stores):
    folder = rewound(begin_in_memory(), stores, 1)
    claim(folder, 6)
    rewinder = Zombie(folder, stores, Place("put", "bases/000001.json", Side.BEFORE))
    claim(folder, 7)
    write_group(folder, 6, version=1, attempt=0, step=1)
    for ticket in range(8, 12):
        claim(folder, ticket, base=1)
        newer = {"version": 4, "ordinal": 2, "attempt": 1, "step": 2} if ticket >= 10 else {"version": 1}
        write_group(folder, ticket, base=1, **{"attempt": 0, "step": 1, **newer})
    assert rewinder.let_go() is None
    base, given_up = folder.bases()[1], [2, 3, 4, 5, 6]
    assert (base.first_ticket, base.reissue, base.prompts, base.next_prompt) == (7, given_up, given_up, 7)
    plans = [plan for step in (2, 3) if (plan := folder.plan(StepKey(1, step)))]
    reasons = {drop.ticket: drop.reason for plan in plans for drop in plan.drops}
    assert reasons == {**dict.fromkeys(given_up, DropReason.REISSUED), 7: DropReason.VOID_BASE}
    assert [plan.tickets for plan in plans] == [[8, 9], [10, 11]]


def test_a_living_engine_returns_to_the_newest_version_of_the_history(begin: Begin, stores: Stores):
    folder = begin(stop={"max_steps": 3, "stall_seconds": 30})
    others = Walk(folder).start("generator", "scorer")
    killed(folder, stores, "put", "events/learner-.*/00000007.json")
    others.until(lambda: 3 in _served(folder))
    go_back(folder, 1)
    rewinder = Zombie(folder, stores, Place("put", "bases/000001.json", Side.AFTER))
    others.until(lambda: _served(folder)[-1] == 1)
    assert rewinder.let_go() is None
    others.join()
    served = _served(folder)
    assert served[served.index(3) + 1] == 1
    plans = [plan for step in (2, 3) if (plan := folder.plan(StepKey(1, step)))]
    sampled_by = {
        scored_from_arrow(folder.scored.demand(ticket)).model_version for plan in plans for ticket in plan.tickets
    }
    assert sampled_by <= {0, 1, 4}


def _served(folder: RunFolder) -> list[int]:
    """Versions that generators have loaded, in order."""
    found = [
        event
        for stream in folder.event_streams()
        for number in folder.event_numbers(stream)
        if (event := folder.event(stream, number)) is not None and event.kind == "version_served"
    ]
    return [event.payload["version"] for event in sorted(found, key=lambda event: event.at)]


def test_groups_in_the_archive_are_chosen_after_going_back(begin_in_memory: Begin, stores: Stores):
    folder = rewound(begin_in_memory(), stores, 2)
    assert Archiver(folder).archive_all() == 18
    learn(folder, stores)
    assert outcome(folder).trained == [[0, 1], [2, 3], [4, 5]]
    assert folder.plan(StepKey(1, 3)) is not None


def test_a_second_rewind_gives_out_what_the_first_had_not(begin_in_memory: Begin, stores: Stores):
    folder = rewound(begin_in_memory(), stores, 1)
    killed(folder, stores, "put", "bases/000001.json", Side.AFTER)
    go_back(folder, 0)
    rewinder = Zombie(folder, stores, Place("put", "bases/000002.json", Side.AFTER))
    base = folder.bases()[2]
    assert (base.parent, base.base_step, base.rewind, base.first_ticket) == (1, 0, 1, 6)
    assert sorted(base.prompts) == list(range(6))
    assert base.next_prompt == 6
    rewinder.writer.dead = True
    assert isinstance(rewinder.let_go(), Killed)
