"""Which GPUs a plan counts on: those of torch's build, of the driver and of the variables that hide some."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.runs.memory import plan_memory, problems, warnings
from agrpo.runs.memory.gpus import Build, Gpus, build_in, find_gpus, torch_build
from agrpo.runs.memory.machine import Memory
from agrpo.runs.memory.telling import headings
from tests.runs.made import a_config, a_machine

MIB = 2**20
TWO = "echo '0, GPU-aaaa1111, 81559, 80000, Disabled'; echo '1, GPU-bbbb2222, 24564, 24000, [N/A]'"
SHARED = """case $1 in
-L) echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111)'
    echo '  MIG 3g.40gb     Device  0: (UUID: MIG-1111-22)'
    echo '  MIG 1g.10gb     Device  1: (UUID: MIG-3333-44)' ;;
*) echo '0, GPU-aaaa1111, 81559, 80000, Enabled' ;;
esac"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `nvidia-smi` that knows two GPUs, found before any other."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return a_driver(tmp_path, TWO)


def a_driver(folder: Path, script: str) -> Path:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def seen(**variables: str) -> list[int]:
    """MiB of each."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    found = find_gpus({**order, **variables}, Build.CUDA)
    assert found.doubt is None
    return [gpu.total // MIB for gpu in found.memory]


@pytest.mark.usefixtures("driver")
def test_gpus_are_those_that_the_driver_tells_and_the_process_sees():
    assert seen() == [81559, 24564]
    assert seen(CUDA_VISIBLE_DEVICES="1,0") == [24564, 81559]
    assert seen(CUDA_VISIBLE_DEVICES="GPU-aaaa") == [81559]
    assert seen(CUDA_VISIBLE_DEVICES="1,-1,0") == [24564]
    assert seen(CUDA_VISIBLE_DEVICES="") == seen(CUDA_VISIBLE_DEVICES="-1") == []


@pytest.mark.usefixtures("driver")
def test_a_build_of_torch_for_the_cpu_sees_none():
    assert find_gpus({}, Build.CPU) == Gpus()


@pytest.mark.usefixtures("driver")
def test_gpus_that_differ_may_be_counted_in_another_order():
    found = find_gpus({}, Build.CUDA)
    assert len(found.memory) == 2
    assert found.doubt is not None and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.doubt
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, Build.CUDA).doubt is None


@pytest.mark.parametrize(("visible", "gigabytes"), [("MIG-3333-44", 10), (None, 40), ("0", 40)])
def test_a_share_of_a_gpu_has_the_size_of_its_name(driver: Path, visible: str | None, gigabytes: int):
    a_driver(driver.parent, SHARED)
    found = find_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, Build.CUDA)
    size = round(0.95 * gigabytes * 2**30)
    assert found.memory == (Memory(total=size, free=size),)
    assert found.doubt is not None and "MIG" in found.doubt


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'No devices were found'", "nvidia-smi said: No devices were found"),
        ("echo broken; exit 4", "nvidia-smi ended with 4 and said: broken"),
        ("echo '0, GPU-aaaa1111, [N/A], [N/A], [N/A]'", "nvidia-smi does not say how much memory GPU 0 has"),
    ],
)
def test_a_driver_that_does_not_say_it_leaves_a_doubt(driver: Path, script: str, told: str):
    a_driver(driver.parent, script)
    assert find_gpus({}, Build.CUDA) == Gpus(doubt=told)


@pytest.mark.usefixtures("driver")
def test_a_name_that_the_driver_does_not_know_leaves_a_doubt():
    found = find_gpus({"CUDA_VISIBLE_DEVICES": "MIG-none"}, Build.CUDA)
    assert found == Gpus(doubt='CUDA_VISIBLE_DEVICES names "MIG-none", which nvidia-smi does not know')


def test_devices_without_a_driver_that_tells_them_leave_a_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert find_gpus({}, Build.CUDA, tmp_path) == find_gpus({}, Build.ROCM, tmp_path) == Gpus()
    (tmp_path / "nvidia0").touch()
    (tmp_path / "kfd").touch()
    assert find_gpus({}, Build.CUDA, tmp_path).doubt == f"there is {tmp_path / 'nvidia0'}, and no nvidia-smi"
    assert find_gpus({}, Build.ROCM, tmp_path).doubt == "torch is a build for AMD's, whose memory is not read"
    assert find_gpus({"HIP_VISIBLE_DEVICES": ""}, Build.ROCM, tmp_path) == Gpus()


@pytest.mark.parametrize(
    ("cuda", "hip", "build"),
    [("None", "None", Build.CPU), ("'13.0'", "None", Build.CUDA), ("None", "'7.1.0'", Build.ROCM)],
)
def test_what_a_build_computes_on_stands_in_its_version(cuda: str, hip: str, build: Build):
    text = f"__version__ = '2.13.0'\ncuda: Optional[str] = {cuda}\ngit_version = 'cuda'\nhip: Optional[str] = {hip}\n"
    assert build_in(text) == build


def test_the_build_is_told_without_importing_torch():
    import torch

    expected = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    assert torch_build() == expected
    code = "import sys; from agrpo.runs.memory.gpus import torch_build; torch_build(); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "False\n"


def test_where_gpus_are_not_known_a_run_is_warned_of_and_not_refused(tmp_path: Path):
    plan = plan_memory(a_config(tmp_path), a_machine(0.5, doubt="nvidia-smi said: nothing"))
    assert problems(plan) == []
    (told,) = warnings(plan)
    assert "this run takes at least" in told
    assert told.endswith("It begins all the same, since the learner's GPUs are not known: nvidia-smi said: nothing")
    assert headings(plan)[1] == "memory: the learner's GPUs are not known for sure: nvidia-smi said: nothing"


def test_a_run_that_cannot_fit_begins_where_the_environment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = plan_memory(a_config(tmp_path), a_machine(0.5))
    (refused,) = problems(plan)
    assert refused.endswith("or begin all the same with AGRPO_MEMORY=warn in the environment")
    assert warnings(plan) == []
    monkeypatch.setenv("AGRPO_MEMORY", "warn")
    assert problems(plan) == []
    assert warnings(plan)[0].endswith("It begins all the same, since AGRPO_MEMORY is warn")
    monkeypatch.setenv("AGRPO_MEMORY", "off")
    assert problems(plan) == ['AGRPO_MEMORY = "off": expected warn, which begins a run that cannot fit, or refuse']
