"""Runs that train an adapter: whole weights for the engine, small checkpoints, and every promise of durability."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agrpo.audit import replay, verify
from agrpo.checkpoints.manifest import verified
from agrpo.checkpoints.single import Keepsakes, read_training_state
from agrpo.config import RunConfig, load_settings, resolve
from agrpo.errors import CheckpointMismatch
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.versions import newest_version
from agrpo.records.documents import dump
from agrpo.records.progress import WeightsForm
from agrpo.resuming import take_up
from agrpo.runs import prepare
from agrpo.stages.keeping import Keeper
from agrpo.weights.filesystem import digest_in
from agrpo.weights.lora import read_adapter
from tests.stages.walk import LOCKSTEP, dones, settings, walk

ADAPTER = {"rank": 4, "alpha": 16.0}
Begin = Callable[..., RunFolder]


def config_of(folder: RunFolder) -> RunConfig:
    return RunConfig.build(load_settings(folder.document()))


@pytest.mark.spec("A-186")
def test_an_adapter_is_published_merged_under_the_models_own_names(begin: Begin, tiny_model: Path):
    folder = begin(adapter=ADAPTER, **LOCKSTEP)
    walk(folder)
    newest, base = newest_version(folder), load_file(tiny_model / "model.safetensors")
    assert newest.form is WeightsForm.FULL and newest.version == 4
    stored = load_file(folder.filesystem.local_folder(newest.folder) / "model.safetensors")
    assert stored.keys() == base.keys()
    changed = {name for name in base if not torch.equal(stored[name], base[name])}
    assert changed == {name for name in base if "proj" in name}
    assert newest.trained_digest == dones(folder)[-1].digest != newest.digest
    difference = [done.metrics["sampling/sampling_logp_difference/max"] for done in dones(folder)]
    assert max(difference) < 1e-4
    assert all("lora_" in name for name in dones(folder)[-1].digests)


class Killed(BaseException):
    """The learner ends here, as by SIGKILL."""


@pytest.mark.spec("A-035")
def test_an_adapter_run_that_was_killed_ends_in_the_weights_of_one_that_was_not(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    whole = begin("whole", adapter=ADAPTER, **LOCKSTEP)
    walk(whole)
    killed = begin("killed", adapter=ADAPTER, checkpoint={"every_seconds": 1e6}, **LOCKSTEP)
    publish = Keeper.publish

    def die_before_the_third(keeper: Keeper, version: int, step: int, **others: Any) -> None:
        if version == 3:
            raise Killed
        publish(keeper, version, step, **others)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Keeper, "publish", die_before_the_third)
        walk(killed)
    lost = newest_version(killed)
    killed.filesystem.delete(lost.folder)
    assert (killed.done_steps(0), killed.filesystem.list("checkpoints")) == ([1, 2, 3], ["00000000-000000"])
    walk(killed)
    told = [
        killed.event(stream, number) for stream in killed.event_streams() for number in killed.event_numbers(stream)
    ]
    replayed = [event.payload["step"] for event in told if event.kind == "replayed"]
    mended = [event.payload["version"] for event in told if event.kind == "weights_mended"]
    assert (replayed, mended) == ([1, 2, 3], [lost.version])
    found = [done.digests for attempt in (0, 1) for done in dones(killed, attempt)]
    assert found == [done.digests for done in dones(whole)]
    for version in (3, 4):
        assert killed.version(1, version).digest == whole.version(0, version).digest
    assert verify(killed).balances, verify(killed).findings


def test_a_run_with_an_adapter_balances_and_replays_bit_for_bit(begin: Begin, tmp_path: Path):
    folder = begin(adapter={**ADAPTER, "dora": True, "targets": ["q_proj", "down_proj"]}, checkpoint={"save_steps": 2})
    walk(folder)
    found = verify(folder)
    assert found.balances, found.findings
    outcome = replay(folder, from_start=True, out=tmp_path / "replayed")
    assert outcome.identical and outcome.digest == dones(folder)[-1].digest
    exported = folder.filesystem.local_folder("model")
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (tmp_path / "replayed" / name).read_bytes() == (exported / name).read_bytes()


def test_weights_that_are_not_the_adapters_are_found(begin: Begin):
    folder = begin(adapter=ADAPTER, **LOCKSTEP)
    walk(folder)
    ready, before = newest_version(folder), folder.version(0, 3)
    key = "versions/000000/00000004.json"
    folder.filesystem.put(key, dump(replace(ready, step_digest=before.trained_digest)), exclusive=False)
    (found,) = verify(folder).findings
    assert found.about == key and f"holds weights {before.trained_digest} of step 4" in found.told
    place, digest = f"weights/00000004-{before.digest[:16]}", before.digest
    folder.filesystem.delete(ready.folder)
    shutil.copytree(folder.filesystem.local_folder(before.folder), Path(folder.url, place))
    folder.filesystem.put(key, dump(replace(ready, digest=digest, folder=place)), exclusive=False)
    assert verify(folder).balances
    assert replay(folder).difference == (
        f"version 4 of step 4 holds weights {digest}, the step's adapter gives {ready.digest}"
    )


def test_a_checkpoint_holds_the_adapter_alone_and_fits_no_other_base(tiny_model: Path, prompts: Path, tmp_path: Path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    tree = settings(model, prompts, tmp_path, adapter=ADAPTER)
    folder = prepare(resolve(values=tree), folder=str(tmp_path / "run"))
    walk(folder)
    newest = folder.filesystem.local_folder(f"checkpoints/{folder.filesystem.list('checkpoints')[-1]}")
    assert digest_in(newest / "model.safetensors") == verified(newest).digest == dones(folder)[-1].digest
    assert sum(file.stat().st_size for file in newest.iterdir()) < (tiny_model / "model.safetensors").stat().st_size
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointMismatch, match=r"holds the base as digest .* this model has it as digest"):
        walk(folder)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_an_export_loads_whole_with_peft_and_to_train_on(begin: Begin, tiny_model: Path):
    folder = begin(adapter=ADAPTER, checkpoint={"save_steps": 2})
    walk(folder)
    export = folder.filesystem.local_folder("exports/step-4")
    whole = AutoModelForCausalLM.from_pretrained(export)
    beside = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), str(export / "adapter"))
    tokens = torch.arange(1, 20)[None]
    with torch.no_grad():
        assert torch.allclose(whole(tokens).logits, beside(tokens).logits, atol=1e-5)
    config = config_of(folder)
    policy = load_policy(config.model, "cpu", adapter=config.adapter, seed=7)
    read_adapter(export / "adapter", policy)
    optimizer = build_optimizer(policy, config.optimizer)
    manifest = read_training_state(export, policy, optimizer, keepsakes=Keepsakes())
    assert digest_of(tensor_digests(policy)) == manifest.digest == dones(folder)[-1].digest
    assert len(optimizer.state) == len(tensor_digests(policy))


def test_a_resume_under_the_file_it_began_with_changes_nothing(begin: Begin):
    folder = begin(adapter=ADAPTER)
    tree = folder.document()["settings"]["tree"]
    assert tree["adapter"]["publish"] == "merged"
    asked = {**tree, "adapter": {**tree["adapter"], "publish": "auto"}}
    take_up(folder, resolve(values=json.loads(json.dumps(asked))))
