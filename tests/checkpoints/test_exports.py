"""Exports: models for users every so many steps, whole, and no more of them than were asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agrpo.checkpoints.manifest import verified
from agrpo.checkpoints.single import Keepsakes, read_training_state
from agrpo.config import RunConfig, resolve
from agrpo.errors import CheckpointError, ConfigError
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.queue.checkpoints import all_checkpoints
from agrpo.queue.run_folder import RunFolder
from agrpo.runs import prepare
from agrpo.stages.keeping import Keeper
from tests.checkpoints.keepers import Kept, events_of, keep, new_run
from tests.stages.walk import LOCKSTEP, dones, settings, walk


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path / "run")


def trained(kept: Kept, steps: range) -> Kept:
    for step in steps:
        kept.move()
        kept.keeper.export_if_due(step)
    return kept


def test_every_second_step_is_a_model_that_from_pretrained_loads(folder: RunFolder, tiny_model: Path):
    kept = trained(keep(folder, tiny_model, checkpoint={"save_steps": 2}), range(1, 5))
    assert folder.filesystem.list("exports") == ["step-2", "step-4"]
    place = Path(folder.url, "exports/step-4")
    model = AutoModelForCausalLM.from_pretrained(place, dtype="float32")
    assert digest_of(tensor_digests(model)) == kept.keeper.digest() == verified(place).digest
    assert AutoTokenizer.from_pretrained(place).pad_token == "<|pad|>"
    assert all_checkpoints(folder) == []


def test_training_may_begin_with_the_exported_moments(folder: RunFolder, tiny_model: Path):
    kept = trained(keep(folder, tiny_model, checkpoint={"save_steps": 3}), range(1, 4))
    other = keep(folder, Path(folder.url, "exports/step-3"), attempt=1)
    trainee = other.trainee
    place = Path(folder.url, "exports/step-3")
    read_training_state(place, trainee.model, trainee.optimizer, keepsakes=Keepsakes())
    kept.move()
    other.move()
    assert other.keeper.digest() == kept.keeper.digest()


def test_the_model_alone_holds_no_moments(folder: RunFolder, tiny_model: Path):
    kept = trained(keep(folder, tiny_model, checkpoint={"save_steps": 1, "save_only_model": True}), range(1, 2))
    place = Path(folder.url, "exports/step-1")
    assert not {"optimizer.safetensors", "state.json"} & {path.name for path in place.iterdir()}
    with pytest.raises(CheckpointError, match=r"holds no optimizer\.safetensors, state\.json"):
        read_training_state(place, kept.trainee.model, kept.trainee.optimizer, keepsakes=Keepsakes())


def test_the_newest_of_the_history_are_kept(folder: RunFolder, tiny_model: Path):
    limited = {"save_steps": 1, "save_total_limit": 2, "save_only_model": True}
    trained(keep(folder, tiny_model, checkpoint=limited), range(1, 5))
    assert folder.filesystem.list("exports") == ["step-3", "step-4"]
    back = trained(keep(folder, tiny_model, attempt=1, checkpoint=limited), range(2, 3))
    assert folder.filesystem.list("exports") == ["step-2"]
    trained(back, range(3, 4))
    assert folder.filesystem.list("exports") == ["step-2", "step-3"]


def test_an_export_of_a_history_that_was_left_is_written_anew_and_one_that_stands_is_not(
    folder: RunFolder, tiny_model: Path
):
    kept = trained(keep(folder, tiny_model, checkpoint={"save_steps": 1, "save_only_model": True}), range(1, 2))
    kept.keeper.export_if_due(1)
    assert len(events_of(folder, 0, "exported")) == 1
    trained(kept, range(1, 2))
    assert verified(Path(folder.url, "exports/step-1")).digest == kept.keeper.digest()


@pytest.mark.parametrize("ignored", [{"save_total_limit": 2}, {"save_only_model": True}])
def test_settings_of_exports_without_exports_are_refused(ignored: dict, tiny_model: Path, tmp_path: Path):
    tree = settings(tiny_model, tmp_path / "prompts.jsonl", tmp_path, checkpoint=ignored)
    with pytest.raises(ConfigError, match=rf"checkpoint\.{next(iter(ignored))}: .*set checkpoint\.save_steps"):
        RunConfig.build(resolve(values=tree))


def test_a_run_that_died_before_an_export_makes_it_when_it_goes_on(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": [{"role": "user", "content": f"{n} ="}]}) for n in range(8)))
    tree = settings(tiny_model, file, tmp_path, checkpoint={"save_steps": 2}, **LOCKSTEP)
    folder = prepare(resolve(values=tree), folder=str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "export_if_due", _die_at_step_2)
        with pytest.raises(ConnectionAbortedError):
            walk(folder)
    assert folder.filesystem.list("exports") == []
    walk(folder)
    assert folder.filesystem.list("exports") == ["step-2", "step-4"]
    digests = {done.step: done.digest for attempt in range(2) for done in dones(folder, attempt)}
    assert verified(Path(folder.url, "exports/step-2")).digest == digests[2]


def _die_at_step_2(keeper: Keeper, step: int) -> None:
    if step == 2:
        raise ConnectionAbortedError
