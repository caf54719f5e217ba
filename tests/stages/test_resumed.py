"""Going on: what a resumed run serves, samples, schedules and leaves behind when it is asked to end."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.config import resolve
from agrpo.engines.decoding.engine import DecodingEngine
from agrpo.errors import ConfigError, ProbeMismatch, Stopped
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.arrow import group_from_arrow
from agrpo.records.trained_tokens import tokens_table
from agrpo.resuming import take_up
from agrpo.stages.learner import _Learner
from tests.stages.groups import a_group, publish
from tests.stages.walk import LOCKSTEP, Walk, dones, walk

Begin = Callable[..., RunFolder]


def go_on(folder: RunFolder, steps: int) -> None:
    take_up(folder, resolve(values=folder.document()["settings"]["tree"], sets=[f"stop.max_steps={steps}"]))


@pytest.mark.spec("K10")
def test_a_resumed_run_samples_nothing_before_the_engine_serves_the_newest_version(begin: Begin):
    folder = begin(stop={"max_steps": 6}, **LOCKSTEP)
    walk(folder)
    before = set(folder.groups.numbers())
    go_on(folder, 7)
    walk(folder)
    plan, done = folder.plan(StepKey(1, 7)), folder.done(StepKey(1, 7))
    assert not before.intersection(plan.tickets)
    groups = {ticket: group_from_arrow(folder.groups.read(ticket)) for ticket in plan.tickets}
    (engine,) = {group.generator for group in groups.values()}
    served = folder.acknowledgement(engine, 6)
    assert all(folder.acknowledgement(engine, version) is None for version in range(6))
    assert all(group.claimed_at >= served.acknowledged_at for group in groups.values())
    versions = {v for g in groups.values() for r in g.rollouts for turn in r.turns for v in turn.output_versions}
    assert versions == {6}
    for sample in tokens_table(folder.tokens(StepKey(1, 7))).to_pylist():
        (turn,) = groups[sample["ticket"]].rollouts[sample["rollout_index"]].turns
        for learned, sampled in zip(sample["log_probs"], turn.output_log_probs, strict=True):
            assert abs(math.exp(learned - sampled) - 1) < 1e-3
    assert {sample.staleness for sample in done.samples} == {0}


@pytest.mark.spec("K10")
def test_an_engine_that_keeps_the_weights_it_began_with_ends_a_resumed_run(
    begin: Begin, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = begin(stop={"max_steps": 2}, **LOCKSTEP)
    walk(folder)
    go_on(folder, 3)
    load, before = DecodingEngine.load, set(folder.groups.numbers())

    async def load_the_first(engine: DecodingEngine, folder: Path, version: int) -> None:
        await load(engine, tiny_model, version)

    monkeypatch.setattr(DecodingEngine, "load", load_the_first)
    with pytest.raises(ProbeMismatch, match=r"told to load version 2 and serves other weights: .* a log-prob of -\d"):
        walk(folder)
    assert set(folder.groups.numbers()) == before


def rates(folder: RunFolder) -> list[float]:
    found = {plan.step: plan.learning_rate for plan in plans(folder)}
    return [found[step] for step in sorted(found)]


def plans(folder: RunFolder):
    return [folder.plan(StepKey(attempt, k)) for attempt in folder.attempts() for k in folder.done_steps(attempt)]


EPOCH = {"stop": {"max_steps": None, "epochs": 1}, "step": {"groups": 3, "zero_variance": "keep"}}


@pytest.mark.spec("K36")
def test_a_linear_schedule_ends_with_the_epoch_and_goes_on_after_a_resume(begin: Begin):
    tables = {**EPOCH, **LOCKSTEP, "optimizer": {"learning_rate": 1e-3, "scheduler": "linear"}}
    folder = begin(**tables)
    first = Walk(folder).start("generator", "scorer", "learner")
    first.until(lambda: len(folder.done_steps(0)) >= 2)
    first.stop.set()
    for thread in first.threads:
        thread.join(60)
    walk(folder)
    assert rates(folder) == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert len(folder.attempts()) == 2
    assert Counter(ticket for plan in plans(folder) for ticket in plan.consumed) == Counter(range(12))


@pytest.mark.spec("K36")
def test_after_a_warm_up_step_the_rate_is_above_zero(begin: Begin):
    folder = begin(**{**EPOCH, **LOCKSTEP, "optimizer": {"scheduler": "linear", "warmup_steps": 1}})
    walk(folder)
    assert rates(folder)[0] == 0
    assert min(rates(folder)[1:]) > 0


@pytest.mark.spec("K36")
def test_rollouts_of_several_rows_do_not_shorten_an_epoch(begin: Begin):
    folder = begin(**{**EPOCH, "asynchronous": {"max_staleness": 9}, "step": {"groups": 3, "micro_tokens": 64}})
    for ticket in range(12):
        group = a_group(ticket)
        forked = [replace(one, turns=[turned(one.turns[0], shift) for shift in range(3)]) for one in group.rollouts]
        publish(folder, replace(group, rollouts=forked), (0.0, 1.0))
    Walk(folder).start("learner").join()
    assert len(dones(folder)) == 4
    assert all(len(done.samples) == 3 * 2 * 3 for done in dones(folder))
    assert Counter(ticket for plan in plans(folder) for ticket in plan.tickets) == Counter(range(12))


def turned(turn, shift: int):
    """A turn that does not continue the one before, so that it is a row of its own."""
    return replace(turn, prompt_ids=[3, 20 + shift, 4])


@pytest.mark.spec("K36")
def test_a_decaying_schedule_without_an_end_is_refused(begin: Begin):
    with pytest.raises(ConfigError, match="scheduler"):
        begin(**{**EPOCH, "step": {"zero_variance": "refill"}, "optimizer": {"scheduler": "linear"}})


def test_a_learner_that_is_asked_to_end_leaves_a_checkpoint_of_its_last_step_where_there_is_time(begin: Begin):
    folder = begin(stop={"max_steps": 50, "grace_seconds": 60}, checkpoint={"every_seconds": 1e6}, **LOCKSTEP)
    first = Walk(folder).start("generator", "scorer", "learner")
    first.until(lambda: len(folder.done_steps(0)) >= 3)
    first.stop.set()
    with pytest.raises(Stopped):
        first.join()
    last = max(folder.done_steps(0))
    names = folder.filesystem.list("checkpoints")
    assert names[0] == "00000000-000000"
    assert names[1:] in ([f"{last:08d}-000000"], [])  # none where it was waiting for groups when it was asked
    go_on(folder, last)
    walk(folder)
    assert [done.step for done in dones(folder, 1)] == []


def test_a_learner_says_that_it_works_within_a_long_step(begin: Begin, monkeypatch: pytest.MonkeyPatch):
    folder = begin(stop={"max_steps": 1}, step={"micro_tokens": 32}, **LOCKSTEP)
    told: list[float] = []
    beat = _Learner._beat_at_work
    monkeypatch.setattr(_Learner, "_beat_at_work", lambda learner: (told.append(time.monotonic()), beat(learner)))
    walk(folder)
    assert len(told) == len(folder.plan(StepKey(0, 1)).rows) > 1


@pytest.mark.spec("K12")
def test_every_publish_is_served_under_a_number_of_its_own_that_goes_on_after_a_resume(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    load, served = DecodingEngine.load, []

    async def load_and_tell(engine: DecodingEngine, folder: Path, version: int) -> None:
        served.append((version, folder.name.partition("-")[2]))
        await load(engine, folder, version)

    monkeypatch.setattr(DecodingEngine, "load", load_and_tell)
    folder = begin(stop={"max_steps": 3}, **LOCKSTEP)
    walk(folder)
    go_on(folder, 5)
    walk(folder)
    versions = [version for version, _ in served]
    assert sorted(set(versions)) in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])  # nobody need serve the last
    assert versions.count(3) in (1, 2)  # once more by the engine of the resumed run
    assert len(set(served)) == len(set(versions))
    assert len({digest for _, digest in served}) == len(set(versions))


def test_a_group_that_ends_while_new_weights_are_checked_is_of_those_weights_or_of_older_ones(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    check, complete = DecodingEngine.next_token_logprobs, DecodingEngine.complete

    async def check_late(engine: DecodingEngine, token_ids, of) -> list[float]:
        await asyncio.sleep(0.4)
        return await check(engine, token_ids, of)

    async def complete_late(engine: DecodingEngine, requests):
        await asyncio.sleep(0.1)
        return await complete(engine, requests)

    monkeypatch.setattr(DecodingEngine, "next_token_logprobs", check_late)
    monkeypatch.setattr(DecodingEngine, "complete", complete_late)
    folder = begin(stop={"max_steps": 4}, asynchronous={"max_staleness": 2})
    walk(folder)
    groups = [group_from_arrow(folder.groups.read(ticket)) for ticket in folder.groups.numbers()]
    assert all(folder.version(group.model_attempt, group.model_version).step == group.model_step for group in groups)
