"""Planning: which groups a step takes, what it drops, and what the plan says of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from agrpo.config import RunConfig
from agrpo.errors import DeadlineExceeded, Stopped
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import DropReason
from agrpo.stages.choosing import Chooser
from agrpo.stages.clock import StepClock
from agrpo.stages.planning import StepNumbers, make_plan, read_groups, samples_of_plan
from agrpo.stages.run_ahead import RunAhead
from agrpo.stages.shelf import ConsumedTickets, Shelf
from tests.stages.groups import a_config, a_group, publish

NUMBERS = StepNumbers(
    attempt=0, step=1, version=0, ordinal=0, digest="", num_updates=0, learning_rate=1e-3, publish=1, config_digest="c"
)


def a_chooser(
    folder: RunFolder,
    config: RunConfig,
    consumed: ConsumedTickets | None = None,
    *,
    num_prompts: int | None = None,
    prompts_per_epoch: int = 100,
    stop: threading.Event | None = None,
    clock: StepClock | None = None,
    tell: Callable[..., None] = lambda taken, dropped, at_once: None,
    beat: Callable[[str, float], None] = lambda what, seconds: None,
) -> Chooser:
    return Chooser(
        config,
        Shelf(folder, ConsumedTickets() if consumed is None else consumed),
        clock or StepClock(),
        num_prompts=num_prompts,
        prompts_per_epoch=prompts_per_epoch,
        stop=stop or threading.Event(),
        tell=tell,
        beat=beat,
    )


def tickets(groups: list) -> list[int]:
    return [group.ticket for group in groups]


@pytest.mark.spec("A-089")
def test_asynchronous_takes_the_lowest_readable_group_first(folder: RunFolder):
    for ticket in (5, 3, 9):
        publish(folder, a_group(ticket), (0.0, 1.0))
    assert tickets(a_chooser(folder, a_config()).choose(0).groups) == [3, 5]


def test_lockstep_waits_for_the_lowest_ticket(folder: RunFolder):
    publish(folder, a_group(1), (0.0, 1.0))
    config = a_config(asynchronous={"max_staleness": 0}, stop={"stall_seconds": 0.2})
    with pytest.raises(DeadlineExceeded, match="scored group 0; the limit is 0 s"):
        a_chooser(folder, config).choose(0)
    publish(folder, a_group(0), (0.0, 1.0))
    assert tickets(a_chooser(folder, config).choose(0).groups) == [0, 1]


@pytest.mark.spec("A-316")
def test_the_samples_that_waited_when_choosing_began_are_counted(folder: RunFolder):
    for ticket, lengths in enumerate([(3, 4), (3, 0), (2, 2)]):
        publish(folder, a_group(ticket, lengths=lengths), (0.0, 1.0 if lengths[1] else None))
    chosen = a_chooser(folder, a_config(step={"groups": 1})).choose(0)
    assert chosen.num_queued_samples == 2 + 1 + 2
    assert make_plan(a_config(), chosen, read_groups(folder, [0]), NUMBERS).num_queued_samples == 5


@pytest.mark.spec("A-002", "A-096")
def test_generators_hear_before_the_step_is_trained_how_far_they_may_go_beside_it(folder: RunFolder):
    for ticket in range(4):
        publish(folder, a_group(ticket), (0.0, 1.0))
    config = a_config(step={"groups": 2}, asynchronous={"max_staleness": 1})
    shelf = Shelf(folder, ConsumedTickets())
    run_ahead = RunAhead(folder, config, shelf, dropped=0, attempt=0)
    run_ahead.tell(set())
    assert folder.hint().limit_ticket == 2  # the step's own groups, which lie ready, are all that one step allows
    chooser = a_chooser(folder, config, tell=run_ahead.tell)
    assert tickets(chooser.choose(0).groups) == [0, 1]
    assert folder.hint().limit_ticket == 4


@pytest.mark.spec("A-351")
def test_the_time_until_a_group_is_scored_is_charged_to_waiting(folder: RunFolder):
    clock = StepClock()
    late = threading.Timer(0.2, lambda: publish(folder, a_group(0), (0.0, 1.0)))
    looks: list[None] = []

    def look(taken: set[int], dropped: int, *, at_once: bool) -> None:
        if not looks:
            late.start()
        looks.append(None)

    with clock.part("read"):
        a_chooser(folder, a_config(step={"groups": 1}), clock=clock, tell=look).choose(0)
    late.join()
    spent = clock.lap()
    assert spent.wait_seconds >= 0.15
    assert spent.wait_seconds + spent.read_seconds <= spent.step_seconds


def test_while_groups_come_and_none_fills_the_step_it_is_told_how_far_it_is(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agrpo.stages.choosing.BEAT_SECONDS", 0.0)
    for ticket, rewards in enumerate([(1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)]):
        publish(folder, a_group(ticket), rewards)
    told: list[str] = []
    refill = a_config(step={"zero_variance": "refill"})
    a_chooser(folder, refill, beat=lambda what, seconds: told.append(what)).choose(0)
    assert told == [
        "scored groups: 0 of 2 places filled",
        "scored groups: 1 of 2 places filled",
        "scored groups: 1 of 2 places filled, 1 set aside",
        "scored groups: 1 of 2 places filled, 2 set aside",
    ]


@pytest.mark.spec("A-123", "A-124", "A-126", "K26")
def test_refill_takes_other_groups_in_the_place_of_those_without_variance(folder: RunFolder):
    for ticket, rewards in enumerate([(1.0, 1.0), (0.0, 0.0), (1.0, 0.0), (None, 1.0), (1.0, 0.5)]):
        publish(folder, a_group(ticket), rewards)
    chosen = a_chooser(folder, a_config(step={"zero_variance": "refill"})).choose(0)
    assert tickets(chosen.groups) == [2, 4]
    assert {drop.ticket: drop.reason for drop in chosen.drops} == {
        0: DropReason.EQUAL_REWARDS,
        1: DropReason.EQUAL_REWARDS,
        3: DropReason.TOO_FEW_SCORES,
    }
    assert chosen.num_replaced == 3


@pytest.mark.spec("K26")
def test_drop_leaves_the_step_shorter(folder: RunFolder):
    for ticket, rewards in enumerate([(1.0, 1.0), (1.0, 0.0), (1.0, 0.0)]):
        publish(folder, a_group(ticket), rewards)
    chosen = a_chooser(folder, a_config(step={"zero_variance": "drop"})).choose(0)
    assert tickets(chosen.groups) == [1]
    assert chosen.num_replaced == 0


@pytest.mark.spec("K26")
def test_keep_trains_equal_groups_with_advantage_zero(folder: RunFolder):
    config = a_config(step={"zero_variance": "keep"})
    for ticket, rewards in enumerate([(1.0, 1.0), (1.0, 0.0)]):
        publish(folder, a_group(ticket), rewards)
    chosen = a_chooser(folder, config).choose(0)
    plan = make_plan(config, chosen, read_groups(folder, tickets(chosen.groups)), NUMBERS)
    assert [sample.advantage for sample in plan.samples[:2]] == [0.0, 0.0]
    assert plan.samples[2].advantage == pytest.approx(0.5 / (0.5**0.5 + 1e-4))


@pytest.mark.spec("A-094", "A-336")
def test_a_group_that_is_too_old_is_dropped_as_stale(folder: RunFolder):
    for ticket, version in enumerate([2, 0, 3]):
        publish(folder, a_group(ticket, version=version), (0.0, 1.0))
    chosen = a_chooser(folder, a_config(asynchronous={"max_staleness": 1})).choose(3)
    assert tickets(chosen.groups) == [0, 2]
    assert [(drop.ticket, drop.reason) for drop in chosen.drops] == [(1, DropReason.STALE)]


@pytest.mark.spec("K19")
def test_a_group_without_a_single_answer_is_dropped_as_failed_and_replaced(folder: RunFolder):
    publish(folder, a_group(0, lengths=(0, 0)), (None, None))
    publish(folder, a_group(1, lengths=(), refusal="no messages"), ())
    for ticket in (2, 3):
        publish(folder, a_group(ticket), (0.0, 1.0))
    chosen = a_chooser(folder, a_config()).choose(0)
    assert [drop.reason for drop in chosen.drops] == [DropReason.FAILED, DropReason.REFUSED_PROMPT]
    assert tickets(chosen.groups) == [2, 3]


@pytest.mark.spec("A-119", "K22")
def test_a_rollout_without_a_reward_is_not_trained(folder: RunFolder):
    config = a_config(step={"groups": 1}, engine={"num_generations": 3})
    publish(folder, a_group(0, lengths=(3, 4, 5)), (1.0, None, 0.0))
    chosen = a_chooser(folder, config).choose(0)
    plan = make_plan(config, chosen, read_groups(folder, [0]), NUMBERS)
    assert [sample.rollout_index for sample in plan.samples] == [0, 2]
    assert [sample.advantage for sample in plan.samples] == pytest.approx([0.70701, -0.70701], abs=1e-4)


@pytest.mark.spec("A-161")
def test_a_sample_longer_than_a_micro_batch_is_left_out_with_a_warning_and_counted(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
):
    config = a_config(step={"groups": 1, "micro_tokens": 9})
    publish(folder, a_group(0, lengths=(4, 8)), (1.0, 0.0), micro_tokens=9)
    chosen = a_chooser(folder, config).choose(0)
    plan = make_plan(config, chosen, read_groups(folder, [0]), NUMBERS)
    assert [sample.rollout_index for sample in plan.samples] == [0]
    assert plan.num_oversize == 1
    assert plan.num_trained_tokens == 4
    assert "leaves out 1 of its 2 samples: longer than step.micro_tokens = 9, the longest 11 tokens" in caplog.text


def test_a_group_whose_every_sample_is_too_long_is_dropped_as_oversize(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
):
    config = a_config(step={"groups": 1, "micro_tokens": 9})
    publish(folder, a_group(0, lengths=(8, 7)), (1.0, 0.0), micro_tokens=9)
    publish(folder, a_group(1), (1.0, 0.0), micro_tokens=9)
    chosen = a_chooser(folder, config).choose(0)
    assert [drop.reason for drop in chosen.drops] == [DropReason.OVERSIZE]
    assert tickets(chosen.groups) == [1]
    assert "ticket 0 is dropped: its every sample is longer than step.micro_tokens = 9" in caplog.text


@pytest.mark.spec("A-145", "A-165")
def test_a_plan_has_a_row_for_every_process_and_rows_of_a_prompt_share_it(folder: RunFolder):
    config = a_config()
    for ticket in range(2):
        publish(folder, a_group(ticket), (0.0, 1.0))
    chosen, groups = a_chooser(folder, config).choose(0), read_groups(folder, [0, 1])
    plan = make_plan(config, chosen, groups, replace(NUMBERS, ranks=3))
    assert (plan.ranks, len(plan.rows), sorted(number for row in plan.rows for number in row)) == (3, 3, [0, 1, 2, 3])
    alone = make_plan(config, chosen, groups, NUMBERS)
    assert (alone.ranks, alone.rows) == (1, [[0, 1, 2, 3]])
    row = config.packing.lay_out(samples_of_plan(alone, groups))
    # One prompt of three tokens, and the completions 30 31 1, 31 32 33 1 (also of ticket 1: 31 32 1) and 32 33 34 1.
    assert row.num_tokens == 3 + 3 + 4 + 1 + 4


@pytest.mark.spec("A-127", "A-267")
def test_the_last_step_of_the_prompts_may_be_short(folder: RunFolder):
    for ticket, rewards in enumerate([(1.0, 1.0), (1.0, 0.0), (1.0, 1.0)]):
        publish(folder, a_group(ticket), rewards)
    chosen = a_chooser(folder, a_config(), num_prompts=3).choose(0)
    assert chosen.exhausted
    assert tickets(chosen.groups) == [1]
    assert len(chosen.drops) == 2


@pytest.mark.spec("K26")
def test_two_passes_without_a_group_to_train_end_the_choice(folder: RunFolder):
    for ticket in range(8):
        publish(folder, a_group(ticket), (1.0, 1.0))
    chosen = a_chooser(folder, a_config(), prompts_per_epoch=4).choose(0)
    assert chosen.spent
    assert len(chosen.drops) == 8


def test_being_asked_to_stop_ends_the_wait(folder: RunFolder):
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        a_chooser(folder, a_config(), stop=stop).choose(0)


def test_a_plan_finds_its_samples_again(folder: RunFolder):
    config = a_config()
    for ticket in range(2):
        publish(folder, a_group(ticket), (0.0, 1.0))
    chosen = a_chooser(folder, config).choose(0)
    groups = read_groups(folder, [0, 1])
    plan = make_plan(config, chosen, groups, NUMBERS)
    samples = samples_of_plan(plan, groups)
    assert [(sample.ticket, sample.rollout_index) for sample in samples] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert sorted(number for row in plan.rows for number in row) == [0, 1, 2, 3]
    assert plan.num_trained_tokens == sum(sample.sequence.num_trained for sample in samples) == 14
    assert plan.seed == make_plan(config, chosen, groups, NUMBERS).seed


def test_consumed_tickets_pass_a_dropped_one():
    consumed = ConsumedTickets()
    for ticket in (0, 1, 3, 4, 2):
        consumed.add(ticket)
    assert consumed.floor == 5
    assert consumed.above == set()
    with pytest.raises(AssertionError, match="consumed twice"):
        consumed.add(3)
