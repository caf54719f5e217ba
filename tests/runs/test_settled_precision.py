"""The precision of a run whose settings leave it open: bfloat16 where the learner trains on a GPU, float32 elsewhere."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import ModelSection, RunConfig, load_settings, resolve
from agrpo.errors import ConfigError
from agrpo.queue.amendments import amendments
from agrpo.queue.run_folder import RunFolder
from agrpo.resuming import take_up
from agrpo.runs import prepare
from agrpo.runs.memory import Machine
from agrpo.runs.publishing import ON_GPU, PRECISION, precision_sentence, settled
from tests.runs.made import a_machine
from tests.stages.walk import settings
from tests.test_config import changed

WITH_GPU, WITHOUT = a_machine(64, gpus=(80,)), a_machine(64)


def built(**tables: Any) -> RunConfig:
    return RunConfig.build(resolve(values=changed(**tables)))


@pytest.fixture
def tree(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Settings of a small run that say nothing of precision."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}]}))
    return settings(tiny_model, prompts, tmp_path / "runs")


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs begin and go on at this machine."""
    for page in ("beginning", "memory"):
        monkeypatch.setattr(f"agrpo.runs.{page}.machine_here", lambda: machine)


def precision(folder: RunFolder) -> str | None:
    return folder.document()["settings"]["tree"]["model"]["mixed_precision"]


def test_with_a_gpu_arithmetic_is_in_bfloat16_beside_float32_weights():
    config = settled(built(), WITH_GPU)
    assert (config.model.dtype, config.model.compute_dtype, config.model.served_dtype) == (
        "float32",
        "bfloat16",
        "bfloat16",
    )
    assert config.settings.origins[PRECISION] == ON_GPU
    assert settled(config, WITH_GPU) is config


def test_without_a_gpu_nothing_changes():
    config = built()
    assert settled(config, WITHOUT) is config
    assert precision_sentence(config) is None


@pytest.mark.parametrize(
    "tables",
    [
        {"model": {"mixed_precision": "float32"}},
        {"model": {"mixed_precision": "bfloat16"}},
        {"model": {"dtype": "bfloat16"}},
        {"engine": {"reproducible": True}},
    ],
)
def test_what_is_said_stays_with_a_gpu(tables: dict[str, Any]):
    config = built(**tables)
    assert settled(config, WITH_GPU) is config
    assert precision_sentence(config) is None


def test_no_mixed_precision_can_be_said():
    model = ModelSection(path="m", mixed_precision="float32")
    assert (model.compute_dtype, model.served_dtype) == (None, "float32")


def test_the_run_holds_what_was_settled_and_says_it_once(
    tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    on(WITH_GPU, monkeypatch)
    with caplog.at_level(logging.INFO):
        folder = prepare(resolve(values=tree))
    assert precision(folder) == "bfloat16"
    (told,) = [record.message for record in caplog.records if record.message.startswith(PRECISION)]
    assert told == (
        'model.mixed_precision: "bfloat16", since the learner trains on a GPU; weights stay in float32 beside it. Set "float32" '
        "to have everything in that type"
    )
    assert RunConfig.build(load_settings(folder.document())).model.served_dtype == "bfloat16"


@pytest.mark.parametrize(("began", "goes_on", "held"), [(WITH_GPU, WITHOUT, "bfloat16"), (WITHOUT, WITH_GPU, None)])
def test_a_run_keeps_its_precision_on_another_machine(
    began: Machine, goes_on: Machine, held: str | None, tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    on(began, monkeypatch)
    folder = prepare(resolve(values=tree))
    on(goes_on, monkeypatch)
    take_up(folder, resolve(values=tree))
    assert amendments(folder.filesystem) == []
    assert precision(folder) == held


def test_another_precision_than_the_run_has_is_refused(tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    on(WITH_GPU, monkeypatch)
    folder = prepare(resolve(values=tree))
    with pytest.raises(ConfigError, match=r'model\.mixed_precision: the run has "bfloat16", "float32" is asked for'):
        take_up(folder, resolve(values=tree, sets=["model.mixed_precision=float32"]))


def test_no_mixed_precision_is_what_a_run_on_a_cpu_has(tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    on(WITHOUT, monkeypatch)
    folder = prepare(resolve(values=tree))
    take_up(folder, resolve(values=tree, sets=["model.mixed_precision=float32"]))
    assert amendments(folder.filesystem) == []
