"""Several generators on one run: their seeds, their claims, and the weights that come of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import resolve
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import Attempt, Base, Hint, Probe, WeightsReady
from agrpo.runs import prepare
from agrpo.stages.context import new_incarnation
from agrpo.tensors import digest_of, digest_of_tensor
from tests.stages.walk import Walk, dones, settings, walk

TWO = ("generator", "generator-2")
Begin = Callable[..., RunFolder]


@pytest.fixture
def begin(tiny_model: Path, tmp_path: Path) -> Begin:
    """Begins a run of one prompt, or as many as asked for."""

    def begun(name: str, prompts: int = 1, **tables: Any) -> RunFolder:
        file = tmp_path / f"{name}.jsonl"
        rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(prompts)]
        file.write_text("\n".join(json.dumps(row) for row in rows))
        tree = settings(tiny_model, file, tmp_path, **tables)
        if tree["engine"]["name"] == "scripted":
            del tree["engine"]["threads"]
        return prepare(resolve(values=tree), folder=str(tmp_path / name))

    return begun


@pytest.fixture
def begin_scripted(begin: Begin) -> Begin:
    """Begins a run whose answers depend on prompt and seed alone, one group at a time, with its first version published."""

    def begun(name: str, seed: int = 1, lease_seconds: float = 600.0) -> RunFolder:
        # One group at a time and worker: so that both have work.
        engine = {"name": "scripted", "delay_seconds": 0.3}
        folder = begin(
            name,
            run={"seed": seed},
            engine=engine,
            stop={"max_steps": 1},
            asynchronous={"max_concurrent_rollouts": 4},
            workers={"lease_seconds": lease_seconds},
        )
        publish_uniform(folder)
        folder.write_hint(Hint(limit_ticket=2, dropped=0, floor=0, written_at=time.time()))
        return folder

    return begun


def publish_uniform(folder: RunFolder) -> None:
    """A first version that finds every token equally likely, as the scripted engine does."""
    import torch
    from safetensors.torch import save_file

    folder.write_attempt(Attempt(attempt=0, host="here", pid=1, started_at=0.0))
    folder.write_base(Base(attempt=0, parent=None, base_step=0))
    weight = torch.zeros(1)
    place = folder.filesystem.scratch()
    save_file({"weight": weight}, place / "model.safetensors", metadata={"format": "pt"})
    folder.filesystem.put_folder("weights/0-uniform", place)
    probe = Probe(token_ids=[3, 4], top_ids=[5, 6], top_logprobs=[-math.log(320)] * 2)
    digest = digest_of({"weight": digest_of_tensor(weight)})
    folder.write_version(
        WeightsReady(
            version=0, attempt=0, step=0, digest=digest, folder="weights/0-uniform", probe=probe, published_at=0.0
        )
    )


def generate(folder: RunFolder, *names: str, number: int) -> list[RolloutGroup]:
    """The groups of a run, once these generators have made so many."""
    work = Walk(folder).start(*names)
    work.until(lambda: len(folder.groups.numbers()) == number)
    work.stop.set()
    work.join()
    return [group_from_arrow(folder.groups.read(ticket)) for ticket in folder.groups.numbers()]


def seeds_of(groups: list[RolloutGroup]) -> list[int]:
    return [rollout.seed for group in groups for rollout in group.rollouts]


def texts_of(groups: list[RolloutGroup]) -> set[tuple[int, ...]]:
    return {tuple(rollout.completion_ids) for group in groups for rollout in group.rollouts}


@pytest.mark.spec("K35")
def test_two_generators_of_one_prompt_draw_eight_seeds_that_another_run_of_the_seed_draws_too(begin_scripted: Begin):
    found = [generate(begin_scripted(name, seed), *TWO, number=2) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert [len(texts_of(groups)) for groups in found] == [8, 8, 8]
    assert {group.generator.rsplit("-", 2)[0] for group in found[0]} == {*TWO}
    first, second, other = (seeds_of(groups) for groups in found)
    assert (len({*first}), first) == (8, second)
    assert not {*first} & {*other}


@pytest.mark.spec("K35")
def test_a_group_begun_again_after_a_kill_keeps_its_seeds_and_its_texts(begin_scripted: Begin):
    whole = generate(begin_scripted("whole"), *TWO, number=2)
    folder = begin_scripted("killed")
    for ticket, name in enumerate(TWO):  # claimed by incarnations that are no more
        folder.claims.take(ticket, owner=new_incarnation(name), base=0)
    again = generate(folder, *TWO, number=2)
    assert (seeds_of(again), texts_of(again)) == (seeds_of(whole), texts_of(whole))
    assert [group.claim_try for group in again] == [1, 1]


@pytest.mark.spec("K35")
def test_a_generator_that_goes_on_in_the_second_epoch_draws_the_seeds_it_would_have_drawn(begin: Begin):
    def begun(name: str) -> RunFolder:
        folder = begin(
            name,
            prompts=6,
            engine={"name": "scripted"},
            stop={"max_steps": None, "epochs": 2},
            asynchronous={"max_staleness": 100},
        )
        publish_uniform(folder)
        return folder

    def until(folder: RunFolder, number: int) -> dict[tuple[int, int, int], int]:
        folder.write_hint(Hint(limit_ticket=number, dropped=0, floor=0, written_at=time.time()))
        return {
            (group.prompt.row_index, group.prompt.epoch, rollout.index): rollout.seed
            for group in generate(folder, "generator", number=number)
            for rollout in group.rollouts
        }

    whole, parted = until(begun("whole"), 12), begun("parted")
    assert len(until(parted, 7)) == 28
    again = until(parted, 12)
    assert again[5, 1, 2] == whole[5, 1, 2]
    assert again == whole
    assert len({*whole.values()}) == 48


def test_a_living_neighbour_keeps_its_claims(begin_scripted: Begin):
    folder = begin_scripted("run")
    folder.claims.take(0, owner=new_incarnation("generator-2"), base=0)
    (group,) = generate(folder, "generator", number=1)
    assert group.ticket == 1


def test_what_a_silent_generator_had_claimed_is_generated_by_its_neighbour_after_a_lease(begin_scripted: Begin):
    folder = begin_scripted("run", lease_seconds=0.5)
    folder.claims.take(0, owner=new_incarnation("generator-2"), base=0)
    folder.beat("generator-2", None)
    groups = generate(folder, "generator", number=2)
    assert [(group.ticket, group.claim_try) for group in groups] == [(0, 1), (1, 0)]


@pytest.mark.spec("A-002")
def test_two_generators_and_two_scorers_in_lockstep_make_the_weights_that_one_of_each_makes(begin: Begin):
    # One group at a time leaves the other generator something to do.
    lockstep = {"asynchronous": {"max_staleness": 0, "max_concurrent_rollouts": 4}, "engine": {"reproducible": True}}
    alone, together = (begin(name, prompts=12, workers=workers, **lockstep) for name, workers in SHARED.items())
    walk(alone)
    Walk(together).start(*TWO, "scorer", "scorer-2", "learner").join()
    assert [done.digests for done in dones(together)] == [done.digests for done in dones(alone)]
    generators = {group_from_arrow(together.groups.read(ticket)).generator for ticket in range(8)}
    assert len(generators) == 2


SHARED = {"alone": {}, "together": {"generators": 2, "scorers": 2}}
