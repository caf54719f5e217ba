"""Whole runs of models that are more than float32 weights of a language model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from agrpo.audit import replay, verify
from agrpo.checkpoints.single import Keepsakes, read_training_state
from agrpo.config import ModelSection, OptimizerSection, resolve
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.versions import newest_version
from agrpo.runs import prepare
from tests.policy.test_balance import mixture
from tests.policy.vision_language import seeing
from tests.stages.walk import LOCKSTEP, dones, settings, walk

Begin = Callable[..., RunFolder]


@pytest.fixture(scope="module")
def walked(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Begin:
    """Takes a lockstep run of a model from its first step to its second and last."""

    def done(path: Path, **model: Any) -> RunFolder:
        place = tmp_path_factory.mktemp("run")
        tree = settings(path, prompts, place, **LOCKSTEP)
        tree["model"] |= model
        tree["checkpoint"] |= {"save_steps": 2}
        tree["stop"] |= {"max_steps": 2}
        folder = prepare(resolve(values=tree), folder=str(place / "run"))
        walk(folder)
        return folder

    return done


@pytest.fixture(scope="module")
def mixed(walked: Begin, tiny_model: Path) -> RunFolder:
    return walked(tiny_model, mixed_precision="bfloat16")


@pytest.mark.spec("A-044")
def test_a_run_in_mixed_precision_publishes_what_it_computes_with(mixed: RunFolder, tmp_path: Path):
    folder = mixed
    newest = newest_version(folder)
    published = load_file(folder.filesystem.local_folder(newest.folder) / "model.safetensors")
    exported = load_file(folder.filesystem.local_folder("model") / "model.safetensors")
    checkpoint = folder.filesystem.list("checkpoints")[-1]
    masters = load_file(folder.filesystem.local_folder(f"checkpoints/{checkpoint}") / "model.safetensors")
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    for name, master in masters.items():
        assert torch.equal(published[name], master.bfloat16()) and torch.equal(exported[name], published[name]), name
    assert newest.trained_digest == dones(folder)[-1].digest != newest.digest
    assert max(done.metrics["sampling/sampling_logp_difference/max"] for done in dones(folder)) < 0.1
    assert verify(folder).balances, verify(folder).findings
    assert replay(folder, from_start=True, out=tmp_path / "replayed").identical


def test_training_goes_on_from_an_export_with_the_weights_that_it_rounded(mixed: RunFolder):
    folder = mixed
    export = folder.filesystem.local_folder("exports/step-2")
    policy = load_policy(ModelSection(path=str(export), mixed_precision="bfloat16"), "cpu")
    assert digest_of(tensor_digests(policy)) != dones(folder)[-1].digest
    optimizer = build_optimizer(policy, OptimizerSection())
    read_training_state(export, policy, optimizer, keepsakes=Keepsakes())
    assert digest_of(tensor_digests(policy)) == dones(folder)[-1].digest


@pytest.mark.spec("A-263", "A-265")
def test_a_vision_language_checkpoint_trains_on_text_with_no_other_setting(
    walked: Begin, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast
):
    began = seeing("Qwen3VL", vocab_size=len(tiny_tokenizer), initializer_range=0.08)
    began.save_pretrained(tmp_path / "seeing")
    tiny_tokenizer.save_pretrained(tmp_path / "seeing")
    (tmp_path / "seeing" / "preprocessor_config.json").write_text("{}")
    folder = walked(tmp_path / "seeing")
    place = folder.filesystem.local_folder("model")
    trained = AutoModelForImageTextToText.from_pretrained(place).state_dict()
    for name, tensor in began.state_dict().items():
        assert torch.equal(trained[name], tensor) == ("visual" in name), name
    assert (place / "preprocessor_config.json").is_file()
    newest = newest_version(folder)
    published = load_file(folder.filesystem.local_folder(newest.folder) / "model.safetensors")
    assert published.keys() == dones(folder)[-1].digests.keys() and not any("visual" in name for name in published)
    assert newest.digest == dones(folder)[-1].digest
    assert max(done.metrics["sampling/sampling_logp_difference/max"] for done in dones(folder)) < 1e-4
    assert verify(folder).balances, verify(folder).findings
    assert replay(folder, from_start=True, out=tmp_path / "replayed").identical


@pytest.mark.spec("A-144", "A-301")
def test_a_run_of_a_mixture_balances_its_experts_and_says_how_far(
    walked: Begin, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast
):
    words = {"vocab_size": len(tiny_tokenizer), "initializer_range": 0.08, "eos_token_id": 1}
    mixture("Qwen3MoeConfig", None, **words).save_pretrained(tmp_path / "mixture")
    tiny_tokenizer.save_pretrained(tmp_path / "mixture")
    folder = walked(tmp_path / "mixture", router_aux_loss_coef=0.1)
    losses = [done.metrics["aux_loss"] for done in dones(folder)]
    assert losses == [pytest.approx(2.0, abs=0.2)] * 2 and len({*losses}) == 2, losses
    assert max(done.metrics["sampling/sampling_logp_difference/max"] for done in dones(folder)) < 1e-4
    assert verify(folder).balances, verify(folder).findings
    assert replay(folder, from_start=True, out=tmp_path / "replayed").identical
