"""Which GPUs each server of a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.engines.serving_vllm import devices
from agrpo.engines.serving_vllm.devices import gpus_here, gpus_of, learner_gpus
from agrpo.errors import ConfigError


def visible(number: int, replicas: int, *arguments: str, gpus: int | list[str] = 8) -> str | None:
    known = [str(index) for index in range(gpus)] if isinstance(gpus, int) else gpus
    return gpus_of(number, replicas, arguments, known).get("CUDA_VISIBLE_DEVICES")


@pytest.mark.spec("A-024")
def test_servers_take_the_gpus_after_the_learners() -> None:
    assert [visible(number, 3) for number in (1, 2, 3)] == ["1", "2", "3"]
    assert [visible(number, 2, "--tensor-parallel-size=2") for number in (1, 2)] == ["1,2", "3,4"]
    assert [visible(number, 1, "-tp", "2", "--pipeline_parallel_size", "3") for number in (1,)] == ["1,2,3,4,5,6"]
    assert visible(2, 2, gpus=["GPU-a", "GPU-b", "GPU-c"]) == "GPU-c"


def test_a_learner_of_several_processes_has_a_gpu_for_each() -> None:
    known = [str(index) for index in range(8)]
    assert gpus_of(2, 2, ["-tp=2"], known, learners=4)["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert [learner_gpus(asked, 8, 2, ["-tp=2"]) for asked in (None, 3)] == [4, 3]
    assert learner_gpus(None, 1, 1, []) == 1
    with pytest.raises(ConfigError, match="5 GPUs for the learner and 2 for each server are 9, and 8 can be seen"):
        gpus_of(1, 2, ["-tp=2"], known, learners=5)


def test_gpus_are_shared_out_as_the_page_says() -> None:
    page, known = (
        (Path(__file__).parents[2] / "docs" / "vllm.md").read_text("utf-8"),
        [str(index) for index in range(8)],
    )
    two = ["--tensor-parallel-size=2"]
    taken = {
        asked: [
            gpus_of(number, 3, two, known, learners=learner_gpus(asked, 8, 3, two))["CUDA_VISIBLE_DEVICES"]
            for number in (1, 2, 3)
        ]
        for asked in (None, 1)
    }
    assert learner_gpus(None, 8, 3, two) == 2
    assert taken == {None: ["2,3", "4,5", "6,7"], 1: ["1,2", "3,4", "5,6"]}
    told = " ".join(page.split())
    assert "the learner has 0 and 1, and the servers have 2 and 3, 4 and 5, 6 and 7;" in told
    assert "the learner has 0, the servers have 1 and 2, 3 and 4, 5 and 6, and 7 is idle" in told


def test_too_few_gpus_are_told_with_what_is_needed() -> None:
    with pytest.raises(ConfigError, match="one GPU for the learner and 2 for each server are 5, and 4 can be seen"):
        visible(1, 2, "--tensor-parallel-size=2", gpus=4)


def test_a_single_gpu_is_shared_where_the_server_leaves_room() -> None:
    assert visible(1, 1, "--gpu-memory-utilization=0.4", gpus=1) is None
    with pytest.raises(ConfigError, match="the only GPU here is the learner's too"):
        visible(1, 1, gpus=1)


def test_who_places_the_server_by_hand_is_left_alone_unless_there_are_several() -> None:
    assert visible(1, 1, "--device-ids", "3") is None
    with pytest.raises(ConfigError, match="--device-ids puts all 2 servers on the same GPUs"):
        visible(1, 2, "--device-ids=3")


def test_gpus_are_those_that_may_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "2, 3"}) == ["2", "3"]
    assert gpus_here({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "2,-1,3"}) == ["2"]
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "-1"}) == []
    a_driver(tmp_path, "printf '0\\n1\\n'", monkeypatch)
    assert gpus_here({}) == ["0", "1"]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'No devices were found'", "nvidia-smi said: No devices were found"),
        ("echo 'Failed to initialize NVML' >&2; exit 9", "nvidia-smi ended with 9 and said: Failed to initialize NVML"),
        ("exit 0", "nvidia-smi ended with 0 and said: nothing"),
        ("exec sleep 60", "nvidia-smi did not answer for 0.2 s"),
    ],
)
def test_a_driver_that_does_not_say_its_gpus_leaves_them_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, script: str, told: str
) -> None:
    monkeypatch.setattr(devices, "ASK_SECONDS", 0.2 if "sleep" in script else 20.0)
    a_driver(tmp_path, script, monkeypatch)
    assert gpus_here({}) == []
    assert f"which GPUs this machine has is not known ({told})" in caplog.text


def test_a_driver_that_cannot_be_run_leaves_gpus_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a_driver(tmp_path, "", monkeypatch).write_bytes(b"\x7fELF of another machine")
    assert gpus_here({}) == []
    assert "nvidia-smi cannot be run: Exec format error" in caplog.text


def a_driver(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `nvidia-smi` of that folder, which is found first."""
    driver = folder / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\n{script}\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return driver
