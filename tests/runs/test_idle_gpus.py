"""An engine that samples on the CPU beside a GPU is told before a run begins, and when it does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.runs import prepare
from agrpo.runs.idle_gpus import idle_gpus
from tests.runs.made import a_config, a_machine
from tests.test_config import changed

VLLM = {"name": "vllm", "base_urls": ["http://gpu-1:8000"]}


@pytest.mark.parametrize(
    ("engine", "gpus", "told"),
    [({}, (80,), True), ({}, (), False), ({"name": "scripted"}, (80,), False), (VLLM, (80,), False)],
)
def test_only_the_engine_on_the_cpu_is_told_and_only_beside_gpus(
    engine: dict[str, Any], gpus: tuple[float, ...], told: bool
):
    config = RunConfig.build(resolve(values=changed(engine=engine)))
    found = idle_gpus(config, a_machine(64, gpus=gpus))
    assert [sentence.startswith('engine.name: "transformers" samples on the CPU') for sentence in found] == [
        True
    ] * told


def test_a_run_that_begins_beside_a_gpu_warns_of_it(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("agrpo.runs.beginning.machine_here", lambda: a_machine(64, gpus=(80,)))
    with caplog.at_level(logging.WARNING):
        prepare(a_config(tmp_path, tiny_model).settings)
    assert any('set engine.name = "vllm" and engine.serve = true' in record.message for record in caplog.records)
