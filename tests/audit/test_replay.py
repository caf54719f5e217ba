"""Replaying: the policy of a step made again from history, bit for bit, or where it differs first."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agrpo.audit import replay
from agrpo.errors import ConfigError, StoreLostWrites
from agrpo.queue.archive.archiving import Archiver
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.documents import dump
from tests.audit.finished import STEPS, begin, flip, plan_at, replan, told
from tests.stages.walk import walk


@pytest.fixture(autouse=True)
def _as_before():
    """A replay computes as its run did; the tests after it as they were."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def recorded(folder: RunFolder, step: int) -> str:
    return folder.done(StepKey(0, step)).digest


def test_every_step_is_made_again_from_the_first_weights(finished: RunFolder):
    before = {path: path.stat().st_mtime_ns for path in Path(finished.url).rglob("*")}
    outcome = replay(finished, from_start=True)
    assert outcome.identical
    assert [step.digest for step in outcome.steps] == [recorded(finished, step) for step in range(1, STEPS + 1)]
    assert {path: path.stat().st_mtime_ns for path in Path(finished.url).rglob("*")} == before


def test_a_step_before_the_last_is_made_from_the_newest_checkpoint_up_to_it(finished: RunFolder):
    outcome = replay(finished, to_step=3)
    assert (outcome.begun_at, outcome.steps, outcome.digest) == (3, [], recorded(finished, 3))
    outcome = replay(finished, to_step=2)
    assert (outcome.begun_at, len(outcome.steps), outcome.digest) == (0, 2, recorded(finished, 2))


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(folder: RunFolder):
    flip(next(Path(folder.url).glob("checkpoints/00000004-*/optimizer.safetensors")))
    outcome = replay(folder)
    assert (outcome.begun_at, len(outcome.steps), outcome.digest) == (3, 1, recorded(folder, 4))
    assert "optimizer.safetensors" in outcome.passed_over[0]


def test_groups_come_from_the_archive_as_from_their_slots(folder: RunFolder):
    assert Archiver(folder).archive_all() > 0
    copy = RunFolder.open(folder.url)
    assert not copy.groups.shards.lying()
    assert replay(copy, from_start=True).digest == recorded(folder, STEPS)
    assert told(copy) == []


def test_a_decision_that_was_changed_shows_at_its_step(folder: RunFolder):
    plan = plan_at(folder, 2)
    first, *rest = plan.samples
    replan(folder, plan, samples=[replace(first, advantage=first.advantage + 0.5), *rest])
    outcome = replay(folder, from_start=True)
    assert len(outcome.steps) == 1
    assert outcome.digest == recorded(folder, 1)
    assert outcome.difference.startswith("step 2 replayed differently in ")
    assert "gradient norm" in outcome.difference


def test_a_digest_that_was_changed_shows_at_its_step(folder: RunFolder):
    done = folder.done(StepKey(0, 3))
    folder.filesystem.put("steps/000000/00000003.done.json", dump(replace(done, digest="0" * 32)), exclusive=False)
    outcome = replay(folder, from_start=True)
    assert outcome.difference.startswith("step 3 replayed differently in 0 of ")


def test_a_slot_that_is_gone_is_named(folder: RunFolder):
    ticket = plan_at(folder, 2).tickets[0]
    folder.filesystem.delete(f"groups/000000/{ticket:012d}.arrow")
    with pytest.raises(StoreLostWrites, match=f"{ticket}"):
        replay(folder, from_start=True)


def test_the_model_written_out_is_the_one_the_run_exported(finished: RunFolder, tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    outcome = replay(finished, from_start=True, out=tmp_path / "out")
    assert outcome.identical
    here, there = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (tmp_path / "out", f"{finished.url}/model")
    )
    assert here.keys() == there.keys()
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token_id == 1


def test_nothing_is_written_out_where_the_replay_differs(folder: RunFolder, tmp_path: Path):
    replan(folder, plan_at(folder, 2), learning_rate=0.5)
    assert not replay(folder, from_start=True, out=tmp_path / "out").identical
    assert not (tmp_path / "out").exists()


def test_on_another_machine_the_model_lies_elsewhere(tiny_model: Path, tmp_path: Path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    folder = begin(model, tmp_path, stop={"max_steps": 2})
    walk(folder)
    moved = shutil.move(folder.url, tmp_path / "moved")
    model.rename(tmp_path / "elsewhere")
    copy = RunFolder.open(str(moved))
    with pytest.raises(ConfigError, match="--model"):
        replay(copy, from_start=True)
    assert replay(copy, from_start=True, model=str(tmp_path / "elsewhere")).identical


@pytest.mark.parametrize(("name", "message"), [("config.json", "other files"), ("model.safetensors", "holds weights")])
def test_another_model_is_refused(finished: RunFolder, tiny_model: Path, tmp_path: Path, name: str, message: str):
    other = shutil.copytree(tiny_model, tmp_path / "other")
    if name == "config.json":
        (other / name).write_text((other / name).read_text() + "\n")
    else:
        flip(other / name, 0.9)
    with pytest.raises(ConfigError, match=message):
        replay(finished, from_start=True, model=str(other))


@pytest.mark.parametrize("step", [-1, STEPS + 1])
def test_a_step_that_is_not_done_is_refused(finished: RunFolder, step: int):
    with pytest.raises(ConfigError, match=f"has done steps 1 to {STEPS}"):
        replay(finished, to_step=step)


def test_a_folder_that_holds_something_is_refused(finished: RunFolder, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="name a new folder"):
        replay(finished, out=tmp_path)
